"""What a head drafts: the distributions of the forward written out, round after round.

Under `match` a wrong head is as lossless as a right one. So drafts are compared, in a ragged batch, after rounds that
accepted nothing, a part and all: positions, features, and the states that are fed back.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from mmspec.core.distributions import Categorical
from mmspec.core.policies import Fixed
from mmspec.core.rules import Match, RecursiveRejection, Rejection
from mmspec.core.types import Draft
from tests.heads.conftest import GREEDY, HEADS, KEPT, SAMPLED, checkpoint, features_of, written_out

ROUNDS = 8
NAMES = [pytest.param(name, marks=[] if name == "eagle-3" else [pytest.mark.slow]) for name in HEADS]
"""The forward written out takes seconds; the slow tier looks at all heads."""
Recorded = list[tuple[list[Tensor], list[bool], Draft]]


def played(decoder: Any, rows: dict[str, Tensor], warp: Any, rounds: int = ROUNDS) -> tuple[Recorded, list[int]]:
    """Known units of every row, whether it is done, and the draft, round by round; and what rounds accepted."""
    state = decoder.start(rows, 60, seed=3, warp=warp)
    recorded: Recorded = []
    propose = decoder.drafter.propose

    def watched(state: Any, k: int, noise: Any) -> Draft:
        draft = propose(state, k, noise)
        known = [state.history[b, int(state.pads[b]) : int(state.known[b])].clone() for b in range(state.rows)]
        recorded.append((known, state.done.tolist(), draft))
        return draft

    decoder.drafter.propose = watched
    accepted: list[int] = []
    for _ in range(rounds):
        decoder.advance(state)
        accepted += state.step.verdict.length.tolist()
    return recorded, accepted


def expected(name: str, known: Tensor, path: list[int]) -> Tensor:
    """Log probabilities behind a path of drafted units, and behind each prefix of it: `[len(path) + 1, vocab]`."""
    stored = checkpoint(name)
    features = features_of(stored, known[:-1])
    logits = torch.stack(written_out(stored).draft_logits(features, known[1:].tolist(), path))
    if name == "pruned":
        logits = torch.full((len(logits), 7), -torch.inf, dtype=logits.dtype).index_copy(1, KEPT, logits)
    return logits.log_softmax(-1)


def paths(draft: Draft) -> list[list[int]]:
    """For every drafted node the drafted nodes from the root's child to it."""
    parents = draft.index.parent[0].tolist() if draft.index.listed else None
    assert parents is not None
    found: list[list[int]] = [[]]
    for node in range(1, len(parents)):
        found.append([*found[parents[node]], node - 1])
    return found[1:]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("form", "rule"),
    [({"form": "chain"}, Rejection), ({"form": "branching", "branching": (2, 2, 1)}, RecursiveRejection)],
)
def test_distributions_of_successive_rounds(
    name: str, form: dict[str, Any], rule: type, decoder: Callable, rows: dict[str, Tensor]
) -> None:
    """Sampled drafts carry their distribution: at first siblings it is the head's own."""
    recorded, accepted = played(decoder(name, rule(), **form), rows, SAMPLED)
    assert len(recorded) == ROUNDS and {0} < set(accepted), "no round accepted a part, so nothing was tested"
    for known, done, draft in recorded:
        assert isinstance(draft.distribution, Categorical)
        q = draft.distribution.on(None).double()
        ranks = draft.index.rank[0, 1:].tolist()
        for row in range(3):
            if done[row]:
                continue
            for node, path in enumerate(paths(draft)):
                above = [int(draft.units[row, i]) for i in path[:-1]]
                wanted = expected(name, known[row], above)[-1].exp()
                if ranks[node]:  # without its earlier siblings
                    siblings = [int(draft.units[row, other[-1]]) for other in paths(draft) if other[:-1] == path[:-1]]
                    wanted[siblings[: ranks[node]]] = 0
                    wanted = wanted / wanted.sum()
                assert torch.allclose(q[row, node], wanted, atol=2e-4)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("batch", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_the_dynamic_tree_of_successive_rounds(
    name: str, batch: int, decoder: Callable, rows: dict[str, Tensor]
) -> None:
    """EAGLE-2's tree, greedy: every node's score is the log probability of its path, and the best nodes are taken."""
    rows = {key: value[:batch] for key, value in rows.items()}
    nodes = 8
    recorded, accepted = played(decoder(name, Match(), k=3, form="rerank", width=3, nodes=nodes), rows, GREEDY)
    assert 0 in accepted and max(accepted) > 0, "no round accepted a part, so nothing was tested"
    for known, done, draft in recorded:
        assert draft.units.shape[1] == nodes and draft.score is not None
        for row in range(batch):
            if done[row]:
                continue
            parents = draft.index.parent[row, 1:].tolist()
            path: dict[int, list[int]] = {0: []}
            for node, parent in enumerate(parents):
                path[node + 1] = [*path[parent], int(draft.units[row, node])]
                scores = expected(name, known[row], path[parent])
                units = torch.tensor(path[node + 1])
                reached = float(scores.gather(1, units[:, None]).sum())
                assert abs(float(draft.score[row, node]) - reached) < 1e-3
            best = candidates(name, known[row])
            taken = sorted(draft.score[row].tolist(), reverse=True)
            assert torch.allclose(torch.tensor(taken), torch.tensor(best[:nodes]), atol=1e-3)


def candidates(name: str, known: Tensor, width: int = 3, depth: int = 3) -> list[float]:
    """Scores of all candidates of EAGLE-2's expansion, best first."""
    frontier: list[tuple[float, list[int]]] = [(0.0, [])]
    scores: list[float] = []
    for _ in range(depth):
        children = []
        for score, path in frontier:
            best = expected(name, known, path)[-1].topk(width)
            pairs = zip(best.values.tolist(), best.indices.tolist(), strict=True)
            children += [(score + value, [*path, unit]) for value, unit in pairs]
        scores += [score for score, _ in children]
        frontier = sorted(children, key=lambda child: -child[0])[:width]
    return sorted(scores, reverse=True)


class Budgets(Fixed):
    """Some rounds without a draft."""

    def __init__(self) -> None:
        super().__init__(4)
        object.__setattr__(self, "left", iter([2, 0, 0, 4, 0, 3]))

    def budget(self) -> int:
        return next(self.left)  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", NAMES)
def test_rounds_without_a_draft_are_caught_up(name: str, decoder: Callable, rows: dict[str, Tensor]) -> None:
    """A head that was not asked for some rounds reads all of their features before its next draft."""
    ours = decoder(name, Rejection(), form="chain")
    ours.policy = Budgets()
    recorded, _ = played(ours, rows, SAMPLED, rounds=6)
    assert [draft.units.shape[1] for _, _, draft in recorded] == [2, 4, 3]
    for known, _, draft in recorded:
        q = draft.distribution.on(None).double()
        for row in range(3):
            above = draft.units[row, :-1].tolist()
            assert torch.allclose(q[row], expected(name, known[row], above).exp(), atol=2e-4)
