"""A world being played: frames are shown, actions come in, whenever they come."""
