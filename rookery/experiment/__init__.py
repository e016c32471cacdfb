"""Runs on disk: their settings, folders and checkpoints."""
