"""Rates that find themselves: measure the problem, then search for the rates of an algorithm on it."""
