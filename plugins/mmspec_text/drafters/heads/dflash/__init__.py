"""DFlash, and DSpark's Markov head on it: one network, and the layouts in which its checkpoints come."""
