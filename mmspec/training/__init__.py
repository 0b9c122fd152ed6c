"""The common parts of the plugins' training recipes: the loop, losses, and work folders."""
