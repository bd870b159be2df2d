"""Requests sent from, and simulations computed on, the machines of a Ray cluster."""
