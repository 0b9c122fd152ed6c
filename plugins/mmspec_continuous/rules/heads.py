"""Which heads the rules about denoising steps are for."""

from typing import Any


def refuse_mixtures(target: Any, rule: str, what: str) -> None:
    """Refuse a target whose head has no steps; those that say nothing of a head are told by their distributions.

    Raises:
        ValueError: The head is a mixture.
    """
    if getattr(target, "head", target) is None:
        raise ValueError(
            f"the rule {rule!r} {what} of a denoising head, and this model's head is a mixture of Gaussians, which has "
            "no steps; use 'rejection', which is exact"
        )
