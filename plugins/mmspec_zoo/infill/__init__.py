"""Texts with blanks, which a model fills in any order."""
