"""Parallel prompt decoding: trained prompt tokens behind every node of the target's own pass."""
