"""Denoising heads: what a denoising chain asks of the network that computes its means."""

from typing import Protocol, runtime_checkable

from torch import Tensor


class Head(Protocol):
    """A denoising head. A head that can denoise several steps per call is `PredictsClean`, too.

    Attributes:
        dim: Numbers of a token.
        sigmas: `[steps]`, all > 0, the noise that each step adds; the last one is the model's sigma_0. Read on the host
            every round: keep it on the CPU.
        carry: `[steps]` on the CPU: mean(x, step, c) = carry[step] · x + (a part that the network computes); zeros if
            no such split is known. A draft around another slot's means takes over the network's part only, and carries
            over its own state.
    """

    dim: int
    sigmas: Tensor
    carry: Tensor

    def mean(self, x: Tensor, step: int, condition: Tensor) -> Tensor:
        """Mean of the next state `[m, dim]` at denoising step 0 … steps - 1, given `x [m, dim]`, `condition [m, …]`."""


@runtime_checkable
class PredictsClean(Protocol):
    """A `Head` whose prediction of the clean token can be read and reused.

    Its `mean` takes a step for each state, too. `clean` and `around` are arithmetic without a network, and inverse to
    each other.
    """

    def mean(self, x: Tensor, step: int | Tensor, condition: Tensor) -> Tensor:
        """Mean of the next state `[m, dim]`; `step` is one for all, or `[m]` int64."""

    def clean(self, x: Tensor, step: Tensor, mean: Tensor) -> Tensor:
        """The predicted clean token `[m, dim]` that `mean` implies at state `x [m, dim]` and `step [m]`."""

    def around(self, x: Tensor, step: Tensor, clean: Tensor) -> Tensor:
        """The mean of the next state `[m, dim]` that a predicted clean token implies."""
