"""Toy targets and drafters, small enough for exact joints in closed form."""
