"""The sub-commands of ``rookery``."""
