"""Training of what makes frames of a world faster."""
