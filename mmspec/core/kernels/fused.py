"""Which case of a rule its kernels cover: the result of one or two launches, or None where torch has to do it.

A kernel needs a device that runs it, counter-based noise, and distributions over a whole vocabulary. These do not
change within a call, so that all rounds of a call take the same way.
"""

from torch import Tensor

from mmspec.core import kernels
from mmspec.core.distributions import Categorical, Distribution, drawn_part
from mmspec.core.noise import Round
from mmspec.core.philox import PhiloxSource
from mmspec.core.types import Draft, Verdict


def drawn_and_walked(draft: Draft, distribution: Distribution, round: Round) -> Verdict | None:
    """A draw from logits at every node with noise by position, and the walk."""
    if not kernels.available(draft.units.device) or not isinstance(round.source, PhiloxSource):
        return None
    if not isinstance(distribution, Categorical) or distribution.logits is None:
        return None
    from mmspec.core.kernels.race import race
    from mmspec.core.kernels.walk import walk

    return walk(draft, race(distribution.logits, round.source.key, round.emitted, draft.index.depth))


def coupled_and_walked(draft: Draft, distribution: Distribution, round: Round) -> Verdict | None:
    """A draw at every node of a chain, coupled with the node's drafted child, and the walk."""
    proposal, follows = drawn_part(draft.distribution, draft.valid[:, 1:])
    p, q = whole(distribution), whole(proposal)
    if not kernels.available(draft.units.device) or not isinstance(round.source, PhiloxSource):
        return None
    if p is None or q is None or draft.nodes == 1:
        return None
    from mmspec.core.kernels.coupling import couple
    from mmspec.core.kernels.walk import walk

    return walk(draft, couple(p, q, draft.drafted, follows, round.source.key, round.emitted))


def siblings_tried(draft: Draft, distribution: Distribution, round: Round) -> Verdict | None:
    """The walk that tries sampled siblings in turn and draws from what they leave."""
    p, q = whole(distribution), whole(draft.distribution)
    if not kernels.available(draft.units.device) or not isinstance(round.source, PhiloxSource):
        return None
    if p is None or q is None or draft.nodes == 1:
        return None
    from mmspec.core.kernels.siblings import try_siblings

    return try_siblings(draft, p, q, round.source.key, round.emitted)


def whole(distribution: Distribution | None) -> Tensor | None:
    """Probabilities over a whole vocabulary, if a distribution holds them."""
    return distribution.probs if isinstance(distribution, Categorical) and distribution.ids is None else None
