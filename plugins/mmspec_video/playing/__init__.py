"""A world being played: frames are shown one by one, and actions come in whenever the player has chosen them."""
