"""Captured rounds: the round of the eager loop as one compiled function over buffers, on CUDA one graph.

`choice` says which calls have one, `rounds` is the round, `pool` keeps it for later calls.
"""
