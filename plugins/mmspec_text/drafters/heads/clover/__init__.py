"""Clover's speculators, from the paper: an augmenting block, and cells that attend over the states of a path."""
