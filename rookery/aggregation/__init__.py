"""What the server makes of the uploads of an exchange."""
