"""The EAGLE family: one network for all of its versions, and the layouts in which its checkpoints come."""
