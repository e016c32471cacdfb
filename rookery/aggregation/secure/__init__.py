"""Secure sums: a server learns the sum of what many parties hold, and of no party what it holds.

The protocol is that of Bonawitz et al., "Practical secure aggregation for privacy-preserving machine learning", CCS 2017,
with its double mask. Nothing here knows of networks, algorithms or JAX.
"""
