"""The cases of rules that kernels cover: the result of one or two launches, or None where torch has to do it.

A kernel needs a device that runs it, counter-based noise, and distributions over a whole vocabulary. These do not
change within a call, so that all rounds of a call take the same way.
"""

from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

from mmspec.core import kernels
from mmspec.core.distributions import Categorical, Distribution, drawn_part
from mmspec.core.noise import Round
from mmspec.core.philox import PhiloxSource
from mmspec.core.types import Draft, Verdict

if TYPE_CHECKING:
    from mmspec.core.kernels.block import Residuals


class Given(NamedTuple):
    """The inputs of kernels over two distributions: p, q, and the call's noise."""

    p: Tensor
    q: Tensor
    key: Tensor
    emitted: Tensor


def drawn_and_walked(draft: Draft, distribution: Distribution, round: Round) -> Verdict | None:
    """A draw from logits at every node with noise by position, and the walk; for `match`."""
    if not kernels.available(draft.units.device) or not isinstance(round.source, PhiloxSource):
        return None
    if not isinstance(distribution, Categorical) or distribution.logits is None:
        return None
    from mmspec.core.kernels.race import race, walk

    return walk(draft, race(distribution.logits, round.source.key, round.emitted, draft.index.depth))


def coupled_and_walked(draft: Draft, distribution: Distribution, round: Round) -> Verdict | None:
    """A draw at every node of a chain, coupled with the node's drafted child, and the walk; for `rejection`."""
    proposal, follows = drawn_part(draft.distribution, draft.valid[:, 1:])
    given = _given(draft, distribution, proposal, round)
    if given is None:
        return None
    from mmspec.core.kernels.coupling import couple
    from mmspec.core.kernels.race import walk

    return walk(draft, couple(*given, draft.drafted, follows))


def siblings_tried(draft: Draft, distribution: Distribution, round: Round) -> Verdict | None:
    """The walk that tries siblings in turn and draws from what they leave; for `recursive-rejection`."""
    given = _given(draft, distribution, draft.distribution, round)
    if given is None:
        return None
    from mmspec.core.kernels.siblings import try_siblings

    return try_siblings(draft, *given)


def block_residuals(draft: Draft, distribution: Distribution, round: Round) -> "Residuals | None":
    """The residuals of a chain; for `block`."""
    given = _given(draft, distribution, draft.distribution, round)
    if given is None:
        return None
    from mmspec.core.kernels.block import Residuals

    return Residuals(*given)


def _given(draft: Draft, target: Distribution, proposal: Distribution | None, round: Round) -> Given | None:
    p, q = _whole(target), _whole(proposal)
    if not kernels.available(draft.units.device) or p is None or q is None or draft.nodes == 1:
        return None
    return Given(p, q, round.source.key, round.emitted) if isinstance(round.source, PhiloxSource) else None


def _whole(distribution: Distribution | None) -> Tensor | None:
    """Probabilities over a whole vocabulary, unit by unit in memory, if a distribution holds them."""
    if not isinstance(distribution, Categorical) or distribution.ids is not None:
        return None
    return distribution.probs if distribution.probs.stride(2) == 1 else distribution.probs.contiguous()
