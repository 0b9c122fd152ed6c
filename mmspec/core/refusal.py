"""Refusals that are documented, told apart from whatever else goes wrong."""


class OutOfScopeError(ValueError):
    """A call or a model that speculation leaves to others, as its documentation says: beam search, encoder–decoders.

    Any other `ValueError` about a call that stock decoding can do is a shortcoming of ours: `mmspec verify` counts it.
    """
