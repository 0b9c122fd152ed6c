"""The error of documented limits."""


class OutOfScopeError(ValueError):
    """A call or a model outside the documented scope: beam search, encoder–decoder models.

    `mmspec verify` counts any other `ValueError`, about a call that stock decoding can do, as a failure.
    """
