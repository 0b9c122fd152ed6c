"""Which heads the rules about denoising steps take."""

from typing import Protocol, runtime_checkable

from mmspec.core.distributions import Head
from mmspec.core.protocols import Target


@runtime_checkable
class HasHead(Protocol):
    """A target whose distributions come from a head."""

    head: Head | None  # the denoising head; None where the head has no steps (a mixture of Gaussians)


def refuse_mixtures(target: Target, rule: str, what: str) -> None:
    """Refuse a target whose head has no steps; a target without a `head` is left to the check of its distributions.

    Args:
        target: The target.
        rule: The rule's name, for the message.
        what: What the rule does with the steps, for the message.

    Raises:
        ValueError: The head is a mixture.
    """
    if isinstance(target, HasHead) and target.head is None:
        raise ValueError(
            f"the rule {rule!r} {what} of a denoising head, and this model's head is a mixture of Gaussians, which has "
            "no steps; use 'rejection', which is exact"
        )
