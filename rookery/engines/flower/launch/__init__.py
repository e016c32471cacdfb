"""Processes on this machine: a SuperLink and nodes."""
