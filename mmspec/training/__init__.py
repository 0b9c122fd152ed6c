"""Losses and the loop that every plugin's recipe shares."""
