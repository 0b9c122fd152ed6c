"""What a head drafts: the distributions of the forward written out, round after round.

Under `match` a wrong head is as lossless as a right one. So drafts are compared, in a ragged batch, after rounds that
accepted nothing, a part and all: positions, features, and the states that are fed back.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from mmspec.core.rules import Match, RecursiveRejection, Rejection
from tests.heads.conftest import GREEDY, HEADS, KEPT, SAMPLED, checkpoint, features_of, written_out
from tests.support.draft_rounds import ROUNDS, Budgets, assert_distributions, assert_dynamic_tree, played

WRITTEN = [name for name in HEADS if name != "latent"]
NAMES = [pytest.param(name, marks=[] if name == "eagle-3" else [pytest.mark.slow]) for name in WRITTEN]
"""The forward written out takes seconds; the slow tier looks at all heads."""


def expected(name: str, known: Tensor, path: list[int]) -> Tensor:
    """Log probabilities behind a path of drafted units, and behind each prefix of it: `[len(path) + 1, vocab]`."""
    stored = checkpoint(name)
    features = features_of(stored, known[:-1])
    logits = torch.stack(written_out(stored).draft_logits(features, known[1:].tolist(), path))
    if name == "pruned":
        logits = torch.full((len(logits), 7), -torch.inf, dtype=logits.dtype).index_copy(1, KEPT, logits)
    return logits.log_softmax(-1)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("form", "rule"),
    [
        ({"form": "chain"}, Rejection),
        pytest.param({"form": "branching", "branching": (2, 2, 1)}, RecursiveRejection, marks=pytest.mark.slow),
    ],
)
def test_distributions_of_successive_rounds(
    name: str, form: dict[str, Any], rule: type, decoder: Callable, rows: dict[str, Tensor]
) -> None:
    """Sampled drafts carry their distribution: at first siblings it is the head's own."""
    recorded, accepted = played(decoder(name, rule(), **form), rows, SAMPLED)
    assert len(recorded) == ROUNDS and {0} < set(accepted), "no round accepted a part, so nothing was tested"
    assert_distributions(recorded, partial(expected, name))


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
    assert_dynamic_tree(recorded, partial(expected, name), nodes)


@pytest.mark.parametrize("name", NAMES)
def test_rounds_without_a_draft_are_caught_up(name: str, decoder: Callable, rows: dict[str, Tensor]) -> None:
    """A head that was not asked for some rounds reads all of their features before its next draft."""
    ours = decoder(name, Rejection(), form="chain")
    ours.policy = Budgets()
    recorded, _ = played(ours, rows, SAMPLED, rounds=6)
    assert [draft.units.shape[1] for _, _, draft in recorded] == [2, 4, 3]
    assert_distributions(recorded, partial(expected, name))


def test_where_lengths_are_not_read_a_prompt_is_counted_once(decoder: Callable) -> None:
    """On CUDA attention covers what may be in the cache; a prompt that was counted twice would double it."""
    ours = decoder("eagle-1", form="chain")
    state = ours.start({"input_ids": torch.arange(100).remainder(5)[None] + 1}, 20, seed=0, warp=GREEDY)
    slots = state.memory.cache.slots
    slots.free_to_read = False
    seen = []
    while not state.finished:
        ours.advance(state)
        seen.append(slots.visible)
    assert set(seen) == {128}, "100 units of the prompt, 20 new ones, and a draft, in blocks of 64"
