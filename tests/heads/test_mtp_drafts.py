"""What multi-token layers draft: the forward written out, round after round, in a ragged batch.

One layer that is recycled, and layers of several depths, whose drafts are longer than there are layers.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from mmspec.core.decoder import Decoder
from mmspec.core.distributions import Categorical
from mmspec.core.rules import Match, RecursiveRejection, Rejection, Rule
from mmspec.core.types import Draft
from mmspec.hosts.target import TransformersTarget
from mmspec.testing.tiny_models import llama
from mmspec_text.drafters.mtp import Mtp, MtpOptions
from tests.heads.conftest import GREEDY, SAMPLED
from tests.heads.mtp_heads import HEADS, checkpoint, expected
from tests.support.draft_rounds import ROUNDS, Budgets, paths, played

NAMES = [pytest.param(name, marks=[] if name == "two" else [pytest.mark.slow]) for name in HEADS]


@pytest.fixture
def decoder() -> Callable[..., Decoder]:
    def make(name: str, rule: Rule, k: int = 4, **options: Any) -> Decoder:
        drafter = Mtp(MtpOptions(model=checkpoint(name), probe=False, **options))
        return Decoder(TransformersTarget(llama()), drafter, rule, k=k)

    return make


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("form", "rule"),
    [({"form": "chain"}, Rejection), ({"form": "branching", "branching": (2, 1, 1)}, RecursiveRejection)],
)
def test_distributions_of_successive_rounds(
    name: str, form: dict[str, Any], rule: type, decoder: Callable, rows: dict[str, Tensor]
) -> None:
    """Sampled drafts carry their distribution: that of the forward written out, without earlier siblings."""
    recorded, accepted = played(decoder(name, rule(), **form), rows, SAMPLED)
    assert len(recorded) == ROUNDS and 0 in accepted and max(accepted) > 0, "no round accepted a part"
    for known, done, draft in recorded:
        assert isinstance(draft.distribution, Categorical)
        q = draft.distribution.on(None).double()
        ranks = draft.index.rank[0, 1:].tolist()
        for row in range(3):
            for node, path in enumerate([] if done[row] else paths(draft)):
                wanted = expected(name, known[row], [int(draft.units[row, i]) for i in path[:-1]])[-1].exp()
                if ranks[node]:
                    siblings = [int(draft.units[row, other[-1]]) for other in paths(draft) if other[:-1] == path[:-1]]
                    wanted[siblings[: ranks[node]]] = 0
                    wanted = wanted / wanted.sum()
                assert torch.allclose(q[row, node], wanted, atol=2e-4)


@pytest.mark.parametrize("name", NAMES)
def test_the_dynamic_tree_of_successive_rounds(name: str, decoder: Callable, rows: dict[str, Tensor]) -> None:
    """EAGLE-2's tree, greedy: every node's score is the log probability of its path."""
    recorded, accepted = played(decoder(name, Match(), k=3, form="rerank", width=3, nodes=8), rows, GREEDY)
    assert max(accepted) > 0 and min(accepted) < max(accepted), "no round accepted a part, so nothing was tested"
    for known, done, draft in recorded:
        assert draft.score is not None
        for row in range(0 if all(done) else 3):
            if done[row]:
                continue
            path: dict[int, list[int]] = {0: []}
            for node, parent in enumerate(draft.index.parent[row, 1:].tolist()):
                path[node + 1] = [*path[parent], int(draft.units[row, node])]
                scores, units = expected(name, known[row], path[parent]), torch.tensor(path[node + 1])
                reached = float(scores.gather(1, units[:, None]).sum())
                assert abs(float(draft.score[row, node]) - reached) < 1e-3


@pytest.mark.parametrize("name", NAMES)
def test_rounds_without_a_draft_are_caught_up(name: str, decoder: Callable, rows: dict[str, Tensor]) -> None:
    """Layers that were not asked for some rounds read all of their units before the next draft."""
    ours = decoder(name, Rejection(), form="chain")
    ours.policy = Budgets()
    state = ours.start(rows, 60, seed=3, warp=SAMPLED)
    recorded: list[tuple[list[Tensor], Draft]] = []
    propose = ours.drafter.propose

    def watched(state: Any, k: int, noise: Any) -> Draft:
        draft = propose(state, k, noise)
        recorded.append(([state.history[b, int(state.pads[b]) : int(state.known[b])].clone() for b in range(3)], draft))
        return draft

    ours.drafter.propose = watched
    for _ in range(6):
        ours.advance(state)
    assert [draft.units.shape[1] for _, draft in recorded] == [2, 4, 3]
    for known, draft in recorded:
        q = draft.distribution.on(None).double()
        for row in range(3):
            wanted = expected(name, known[row], draft.units[row, :-1].tolist()).exp()
            assert torch.allclose(q[row], wanted, atol=2e-4)
