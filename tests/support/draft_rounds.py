"""Drafts of successive rounds, compared with a forward written out.

Under `match` a wrong head is as lossless as a right one. So drafts are compared, in a ragged batch, after rounds that
accepted nothing, a part and all.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mmspec.core.distributions import Categorical
from mmspec.core.types import Draft

ROUNDS = 8
Recorded = list[tuple[list[Tensor], list[bool], Draft]]
"""Round by round: the known units of every row, whether it is done, and the draft."""
Expected = Callable[[Tensor, list[int]], Tensor]
"""`(known units, path)`: log probabilities behind the path and each of its prefixes, `[len(path) + 1, vocab]`."""


def played(decoder: Any, rows: dict[str, Tensor], warp: Any, rounds: int = ROUNDS) -> tuple[Recorded, list[int]]:
    """The drafts of so many rounds, and what rounds accepted."""
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


def paths(draft: Draft) -> list[list[int]]:
    """For every drafted node the drafted nodes from the root's child to it."""
    parents = draft.index.parent[0].tolist() if draft.index.listed else None
    assert parents is not None
    found: list[list[int]] = [[]]
    for node in range(1, len(parents)):
        found.append([*found[parents[node]], node - 1])
    return found[1:]


def assert_distributions(recorded: Recorded, expected: Expected) -> int:
    """Sampled drafts carry their distribution: at first siblings it is the head's own. How many nodes there were."""
    seen = 0
    for known, done, draft in recorded:
        if not draft.units.shape[1]:
            continue
        assert isinstance(draft.distribution, Categorical)
        q = draft.distribution.on(None).double()
        ranks, ways = draft.index.rank[0, 1:].tolist(), paths(draft)
        for row in range(len(known)):
            if done[row]:
                continue
            for node, path in enumerate(ways):
                above = [int(draft.units[row, i]) for i in path[:-1]]
                wanted = expected(known[row], above)[-1].exp()
                if ranks[node]:  # without its earlier siblings
                    siblings = [int(draft.units[row, other[-1]]) for other in ways if other[:-1] == path[:-1]]
                    wanted[siblings[: ranks[node]]] = 0
                    wanted = wanted / wanted.sum()
                assert torch.allclose(q[row, node], wanted, atol=2e-4)
                seen += 1
    return seen


def assert_dynamic_tree(recorded: Recorded, expected: Expected, nodes: int, width: int = 3, depth: int = 3) -> None:
    """EAGLE-2's tree, greedy: every node's score is the log probability of its path, and the best nodes are taken."""
    for known, done, draft in recorded:
        assert draft.units.shape[1] == nodes and draft.score is not None
        for row in range(len(known)):
            if done[row]:
                continue
            parents = draft.index.parent[row, 1:].tolist()
            path: dict[int, list[int]] = {0: []}
            for node, parent in enumerate(parents):
                path[node + 1] = [*path[parent], int(draft.units[row, node])]
                scores = expected(known[row], path[parent])
                units = torch.tensor(path[node + 1])
                reached = float(scores.gather(1, units[:, None]).sum())
                assert abs(float(draft.score[row, node]) - reached) < 1e-3
            best = candidates(expected, known[row], width, depth)
            taken = sorted(draft.score[row].tolist(), reverse=True)
            assert torch.allclose(torch.tensor(taken), torch.tensor(best[:nodes]), atol=1e-3)


def candidates(expected: Expected, known: Tensor, width: int, depth: int) -> list[float]:
    """Scores of all candidates of EAGLE-2's expansion, best first."""
    frontier: list[tuple[float, list[int]]] = [(0.0, [])]
    scores: list[float] = []
    for _ in range(depth):
        children = []
        for score, path in frontier:
            best = expected(known, path)[-1].topk(width)
            pairs = zip(best.values.tolist(), best.indices.tolist(), strict=True)
            children += [(score + value, [*path, unit]) for value, unit in pairs]
        scores += [score for score, _ in children]
        frontier = sorted(children, key=lambda child: -child[0])[:width]
    return sorted(scores, reverse=True)
