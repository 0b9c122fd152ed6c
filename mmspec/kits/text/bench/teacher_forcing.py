"""Acceptance on text that is known: the truth is forced, so that drafts are judged on real text.

Small models loop when they write on their own, and loops flatter drafters that look things up. Here the target only
reads: every round the drafter proposes, the known text decides, and what was hit counts. Greedy or not makes no
difference to a drafter's hits.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from mmspec.core.decoder import Decoder
from mmspec.core.state import State
from mmspec.core.types import Step
from mmspec.core.warp import Warp


@dataclass
class TeacherForced:
    """What a drafter hit.

    Attributes:
        rounds: Target passes.
        emitted: Units, the one after the last hit included.
        nodes: Nodes that were verified, roots included.
        visits: Nodes on hit paths, roots included, that had children.
        hits: How often the child of rank 0, 1, … was the truth.
    """

    rounds: int = 0
    emitted: int = 0
    nodes: int = 0
    visits: int = 0
    hits: Counter[int] = field(default_factory=Counter)

    @property
    def acceptance_length(self) -> float:
        """Emitted units per pass."""
        return self.emitted / self.rounds if self.rounds else 0.0

    @property
    def by_rank(self) -> list[float]:
        """Chance that the child of rank 0, 1, … is the truth, given that its parent is."""
        return [self.hits[r] / self.visits for r in range(max(self.hits, default=-1) + 1)] if self.visits else []

    def count(self, step: Step) -> None:
        """Add a settled round of one row."""
        index, hit = step.draft.index, int(step.verdict.length[0])
        path = [0, *step.verdict.path[0, :hit].tolist()]
        parents = set(index.parent[0, 1:][step.draft.valid[0, 1:].expand(index.nodes - 1)].tolist())
        self.rounds += 1
        self.emitted += int(step.count[0])
        self.nodes += int(step.draft.valid.sum())
        self.visits += sum(node in parents for node in path)
        self.hits.update(int(index.rank[0, node]) for node in path[1:])


def teacher_force(decoder: Decoder, text: Tensor, given: int) -> TeacherForced:
    """Lead a decoder through a known text.

    Args:
        decoder: Target and drafter; its rule is not asked.
        text: `[1, length]` unit ids.
        given: How many of them are the prompt.
    """
    found = TeacherForced()
    state = decoder.start(text[:, :given], text.shape[1] - given, warp=Warp(sample=False))
    _correct(state, text[:, given])
    while not state.finished:
        at = given + state.host_emitted[0]
        pending = decoder.speculate(state)
        found.count(decoder.settle(state, pending, truth=text[:, at : at + pending.draft.index.deepest + 1]))
        state.sync()
    return found


def _correct(state: State, first: Tensor) -> None:
    """Prefill emitted a unit of the target's own; the text has another."""
    state.root = first
    state.history[:, state.given] = first


def teacher_force_all(decoder: Decoder, texts: Sequence[Tensor], given: int) -> TeacherForced:
    """`forced` over several texts, summed."""
    total = TeacherForced()
    for text in texts:
        one = teacher_force(decoder, text, given)
        total.rounds += one.rounds
        total.emitted += one.emitted
        total.nodes += one.nodes
        total.visits += one.visits
        total.hits.update(one.hits)
    return total
