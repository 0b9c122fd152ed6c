"""Heads whose state is a function of the root's feature and of the path of drafted units."""
