"""Poses beside a text."""
