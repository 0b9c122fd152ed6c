"""Medusa's heads: one residual network for each depth, all on the same feature."""
