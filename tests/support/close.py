"""Numbers of two computations in float32, compared by the scale of all of them: small ones are sums of large ones."""

import torch
from torch import Tensor


def assert_near(ours: Tensor, theirs: Tensor, tolerance: float = 1e-5) -> None:
    """No number is further off than this share of the largest one."""
    largest = float(theirs[theirs.isfinite()].abs().max())
    torch.testing.assert_close(ours, theirs, atol=tolerance * largest, rtol=0)
