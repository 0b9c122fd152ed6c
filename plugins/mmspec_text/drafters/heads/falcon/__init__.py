"""Falcon: blocks of units in one pass of a head."""
