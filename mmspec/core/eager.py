"""The parts of an eager round: the target verifies, the rule decides, what it accepted is emitted and committed."""

from torch import Tensor

from mmspec.core.capabilities import LengthAware
from mmspec.core.one_shape import verified
from mmspec.core.pending import Pending, with_truth
from mmspec.core.protocols import Target
from mmspec.core.round import decided
from mmspec.core.rules.rule import Rule
from mmspec.core.state import State
from mmspec.core.types import Draft, Scores, Step


def scored(state: State, proposed: Draft | None, target: Target) -> Pending:
    """Verify a draft (not rooted), or the root alone if nothing was proposed."""
    with state.report.phase("verify"):
        draft = Draft.alone(state.root) if proposed is None else proposed.rooted(state.root, state.room)
        output, nodes = verified(target, state, draft)
        return Pending(draft, state.warp(output, draft, state.prefix), nodes)


def emitted(state: State, draft: Draft, scores: Scores, rule: Rule, most: int | None = None) -> Step:
    """Let the rule decide, and append what it accepted to the rows: at most `most` units each."""
    state.reserve(draft.index.deepest + 1)
    live, state.step = decided(state.live, draft, scores, rule, state.round(), most)
    state.take(live)
    return state.step


def settled(state: State, pending: Pending, target: Target, rule: Rule, truth: Tensor | None) -> Step:
    """Accept, count and commit; `truth` as in `Decoder.settle`."""
    draft, scores, most = pending.draft, pending.scores, None
    if truth is not None:
        draft, scores = with_truth(draft, scores, truth)
        most = truth.shape[1]
    active = ~state.done
    step = emitted(state, draft, scores, rule, most)
    # Accepted nodes behind an end unit were not emitted, so they do not count.
    state.report.count(draft.valid, step.verdict.length.minimum(step.count), active, pending.nodes)
    state.report.add_bias(draft, step.verdict, step.count)
    target.commit(state.cache, step.verdict.path, step.count)
    return step


def synced(state: State, target: Target) -> None:
    """Tell the target how far the rows were at the last host sync, if it asks for that."""
    if isinstance(target, LengthAware):
        target.synced(state.cache, state.host_emitted)
