"""A round's draft: what the drafter proposes within the policy's budget, and what the policy keeps of it."""

from functools import partial
from operator import index

from mmspec.core.forced import with_forced
from mmspec.core.guard import contained, draft_or_none
from mmspec.core.noise import DraftNoise
from mmspec.core.policies import Policy, Trimming
from mmspec.core.processors import drafts_forbidden_by
from mmspec.core.protocols import Drafter
from mmspec.core.state import State
from mmspec.core.types import Draft


def drafted(
    state: State, drafter: Drafter, policy: Policy, most: int, noise: DraftNoise, vocab: int | None, name: str
) -> Draft | None:
    """The draft, not rooted; None if nothing is proposed or kept.

    Args:
        state: The call.
        drafter: Proposes units.
        policy: Decides the budget, and refuses nodes.
        most: Most units per path.
        noise: What sampled drafts must use.
        vocab: Number of unit ids of a discrete target; None otherwise.
        name: The drafter's name in warnings about faults.
    """
    if not most or not state.drafting or drafts_forbidden_by(state.warp.processors):
        return None
    proposes, decides, budget = f"drafter {name}", f"policy {type(policy).__name__}", 0
    with contained(state, decides):
        budget = min(index(policy.budget()), most, state.depth.most)  # caches were made for `most`
        # A call of one shape has one tree up to the end of the text; nodes beyond it are refused on the device.
        budget = budget * (state.most_room > 0) if state.fixed else min(budget, state.most_room)
    if budget <= 0:
        return None
    draft = draft_or_none(lambda: drafter.propose(state, budget, noise), state, proposes, vocab)
    if draft is not None:
        draft = with_forced(draft, state, budget)
        draft = draft_or_none(partial(policy.trim, draft), state, decides, vocab)
    if draft is not None and isinstance(policy, Trimming) and policy.trims:
        state.depth.note(draft, state.done)
    return None if draft is None or not draft.units.shape[1] else draft.compact()
