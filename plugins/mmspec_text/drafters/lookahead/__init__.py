"""Lookahead decoding: the window and the pool of one row, and the drafter over them."""
