"""Federated nested optimization."""
