"""The offers of the target over transformers models; apart from the target, because manifests import no torch."""

ATTENTION = frozenset({"discrete", "tree", "text", "grow", "truncate", "hidden"})
"""Of a model with key-value attention alone."""
RECURRENT = ATTENTION - {"truncate"}  # of a model with recurrent layers, whose states cannot be taken back
