"""The drafts of heads of all families: the distributions of their forwards written out, round after round.

Under `match` a wrong head is as lossless as a right one. So drafts are compared, in a ragged batch of three, after
rounds that accepted nothing, a part and all: positions, features, the states that are fed back.
"""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mmspec.core.decoder import Decoder
from mmspec.core.rules import Match, RecursiveRejection, Rejection
from mmspec.hosts.target import TransformersTarget
from mmspec.testing.tiny_models import llama
from tests.heads.conftest import GREEDY, SAMPLED
from tests.heads.families import FAMILIES
from tests.support.cycle import Cycle
from tests.support.draft_rounds import ROUNDS, assert_distributions, assert_dynamic_tree, played


def families(check: str) -> list[Any]:
    """The parameters of a check: all heads but EAGLE's latent one, which `test_published.py` follows."""
    return [
        pytest.param(name, marks=[] if check in family.fast.split() else [pytest.mark.slow], id=name)
        for name, family in FAMILIES.items()
        if name != "latent"
    ]


@pytest.mark.parametrize(
    ("name", "form"),
    [
        pytest.param(*each.values, form, marks=each.marks, id=f"{each.id}-{form}")
        for form in ("chain", "branching")
        for each in families(form)
    ],
)
def test_distributions_of_successive_rounds(name: str, form: str, rows: dict[str, Tensor], tmp_path: Path) -> None:
    """Sampled drafts carry their distribution: at first siblings it is the head's own."""
    family = FAMILIES[name]
    how, rule = ({}, Rejection()) if form == "chain" else ({"branching": family.branching}, RecursiveRejection())
    ours = family.decoder(tmp_path, rule, k=family.asked, form=form, **how)
    recorded, accepted = played(ours, rows, SAMPLED)
    drafts = [draft for _, _, draft in recorded]
    assert [draft.units.shape[1] > 0 for draft in drafts] == [n >= family.undrafted for n in range(ROUNDS)]
    assert {0} < set(accepted), "no round accepted a part, so nothing was tested"
    assert family.deepest is None or all(draft.index.deepest == family.deepest for draft in drafts)
    assert assert_distributions(recorded, family.expected) > 30


@pytest.mark.parametrize("name", families("tree"))
def test_the_dynamic_tree_of_successive_rounds(name: str, rows: dict[str, Tensor], tmp_path: Path) -> None:
    """EAGLE-2's tree, greedy: every node's score is the log probability of its path, and the best nodes are taken."""
    family = FAMILIES[name]
    ours = family.decoder(tmp_path, Match(), k=3, form="rerank", width=3, nodes=family.nodes)
    recorded, accepted = played(ours, rows, GREEDY)
    assert max(accepted) > min(accepted), "no round accepted a part, so nothing was tested"
    assert_dynamic_tree(recorded[family.undrafted :], family.expected, family.nodes)


@pytest.mark.parametrize("name", families("late"))
def test_rounds_without_a_draft_are_caught_up(name: str, rows: dict[str, Tensor], tmp_path: Path) -> None:
    """A head that was not asked for some rounds reads all of their features before its next draft."""
    family = FAMILIES[name]
    ours = family.decoder(tmp_path, Rejection(), form="chain")
    ours.policy = Cycle(2, 0, 0, 4, 0, 3)
    recorded, _ = played(ours, rows, SAMPLED, rounds=6)
    assert tuple(draft.units.shape[1] for _, _, draft in recorded) == family.late
    assert assert_distributions(recorded, family.expected) > 0


@pytest.mark.parametrize("name", ["medusa", "hydra++", "clover", "clover-2", "arctic-lstm"])
def test_in_half_precision(name: str, rows: dict[str, Tensor], tmp_path: Path) -> None:
    """A head follows a target that was cast: its drafts are those of full precision, within rounding."""
    target = TransformersTarget(copy.deepcopy(llama()).to(torch.bfloat16))
    ours = Decoder(target, FAMILIES[name].drafter(tmp_path, form="chain"), Rejection(), k=3)
    recorded, _ = played(ours, rows, SAMPLED, rounds=1)
    known, _, draft = recorded[0]
    assert draft.distribution is not None
    q = draft.distribution.on(None)
    for row in range(3):
        wanted = FAMILIES[name].expected(known[row], draft.units[row, :-1].tolist()).exp()
        assert 0.5 * (q[row] - wanted).abs().sum(-1).mean() < 0.1
