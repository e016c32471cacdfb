"""Engines: how the exchanges of an algorithm are carried out."""
