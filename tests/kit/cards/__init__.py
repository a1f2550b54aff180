"""Simulated and virtual cards, and the programs on them."""
