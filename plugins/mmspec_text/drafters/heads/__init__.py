"""Trained heads that draft from the target's hidden states: what they share, and one folder or file for each kind."""
