"""Speculators that fold one drafted unit after another into a state: an MLP, or an LSTM."""
