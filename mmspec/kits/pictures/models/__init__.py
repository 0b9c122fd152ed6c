"""Torch blocks, caption encoders and readers of published files, for models of the plugins' own."""
