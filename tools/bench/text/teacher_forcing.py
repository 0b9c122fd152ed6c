"""Acceptance on known text (teacher forcing), so that drafts are compared with real text.

The output of small models has loops, which favour drafters that copy. Here every round is settled by a known text
instead of the target's choice, and the drafted units that agree with it are counted. The temperature does not matter.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor

from mmspec.core.decoder import Decoder
from mmspec.core.types import Step
from mmspec.core.warp import Warp


@dataclass
class TeacherForced:
    """Counts of drafted units that agree with a known text."""

    rounds: int = 0  # target passes
    emitted: int = 0  # emitted units, the one after the last accepted one included
    nodes: int = 0  # verified nodes, roots included
    visits: int = 0  # nodes on accepted paths, roots included, that had children
    hits: Counter[int] = field(default_factory=Counter)  # how often the child of rank 0, 1, … agreed with the text

    @property
    def acceptance_length(self) -> float:
        """Emitted units per pass."""
        return self.emitted / self.rounds if self.rounds else 0.0

    @property
    def by_rank(self) -> list[float]:
        """The chance that the child of rank 0, 1, … agrees with the text, given that its parent does."""
        return [self.hits[r] / self.visits for r in range(max(self.hits, default=-1) + 1)] if self.visits else []

    def count(self, step: Step) -> None:
        """Add a settled round of a call with one row."""
        index, hit = step.draft.index, int(step.verdict.length[0])
        path = [0, *step.verdict.path[0, :hit].tolist()]
        parents = set(index.parent[0, 1:][step.draft.valid[0, 1:].expand(index.nodes - 1)].tolist())
        self.rounds += 1
        self.emitted += int(step.count[0])
        self.nodes += int(step.draft.valid.sum())
        self.visits += sum(node in parents for node in path)
        self.hits.update(int(index.rank[0, node]) for node in path[1:])


def teacher_force(decoder: Decoder, texts: Sequence[Tensor], given: int) -> TeacherForced:
    """Decode with every round settled by a known text.

    Args:
        decoder: Target and drafter; the rule is not used.
        texts: Unit ids, `[1, length]` each.
        given: The number of units of each text that are the prompt.
    """
    found = TeacherForced()
    for text in texts:
        state = decoder.start(text[:, :given], text.shape[1] - given, warp=Warp(sample=False))
        # The prefill emitted the target's own unit, which the text's replaces; the drafter begins again with it.
        state.live = replace(state.live, root=text[:, given])
        state.history[:, given] = text[:, given]
        state.hidden = decoder.target.start(text[:, :given], 1, 1).hidden  # a call lets go of them after its beginning
        state.memory = decoder.drafter.start(state, text[:, :given])
        while not state.finished:
            at = given + state.host.emitted[0]
            pending = decoder.speculate(state)
            found.count(decoder.settle(state, pending, truth=text[:, at : at + pending.draft.index.deepest + 1]))
            state.sync()
    return found
