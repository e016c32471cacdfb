"""The ``rookery`` command, one file a command."""
