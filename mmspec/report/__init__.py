"""The figures of a run, and its cost."""
