"""Forced units: the last code of every row of a picture is given; the others keep their distribution, and drafts know
both.
"""

import pytest
import torch

from mmspec.core.decoder import Decoder
from mmspec.core.drafters.draft_model import DraftModel
from mmspec.core.drafters.initialisations import EarlierUnit, LeftUnit, RandomUnit
from mmspec.core.drafters.jacobi import Jacobi
from mmspec.core.rules import Block, Match, Rejection
from mmspec.core.warp import Warp
from mmspec.testing.oracles import exact_joint
from mmspec.testing.toys.grid import GridTarget
from tests.support.cases import GUIDANCE, VOCAB
from tests.support.laws import assert_follows

LENGTH, WIDTH, END = 6, 3, 2
ENDS = torch.tensor([-1, -1, END])  # shorter than the output: what lies beyond is free
TARGET = GridTarget(WIDTH, GridTarget.random(WIDTH, VOCAB, seed=3).table, ENDS.repeat(2)[:5])
SMALL = GridTarget(WIDTH, GridTarget.random(WIDTH, VOCAB, seed=1).table)
WARP = Warp(guidance=GUIDANCE)
DRAFTERS = {
    "random": lambda: Jacobi(RandomUnit(VOCAB)),
    "left": lambda: Jacobi(LeftUnit()),
    "independent": lambda: Jacobi(EarlierUnit(WIDTH), independent=True),
    "model": lambda: DraftModel(SMALL),
}


def next_distribution(codes):
    if len(codes) == 2:
        return torch.nn.functional.one_hot(torch.tensor(END), VOCAB).double()
    return TARGET.next_logits(1, codes, GUIDANCE).softmax(-1)


JOINT = exact_joint(next_distribution, LENGTH, VOCAB)


def run(drafter, rule, rows, k=4, seed=0, warp=WARP):
    decoder = Decoder(TARGET, drafter, rule, k=k)
    return decoder.generate(torch.ones(rows, dtype=torch.int64), LENGTH, seed=seed, warp=warp)


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        pytest.param("random", Rejection, marks=pytest.mark.slow),
        pytest.param("left", Rejection, marks=pytest.mark.slow),
        pytest.param("independent", Rejection, marks=pytest.mark.slow),
        ("model", Block),
    ],
)
def test_free_units_keep_their_distribution(name, rule):
    assert_follows(lambda seed, rows: torch.stack(run(DRAFTERS[name](), rule(), rows, seed=seed).units), JOINT)


@pytest.mark.parametrize("name", DRAFTERS)
def test_same_seed_same_output(name):
    plain = torch.stack(run(None, Match(), 400, k=0).units)
    assert (plain[:, 2] == END).all() and (plain[:, 5] != END).any()
    assert torch.equal(torch.stack(run(DRAFTERS[name](), Match(), 400).units), plain)


@pytest.mark.parametrize("name", DRAFTERS)
def test_they_are_drafted_as_themselves(name):
    decoder = Decoder(TARGET, DRAFTERS[name](), Match(), k=5)
    state = decoder.start(torch.ones(50, dtype=torch.int64), LENGTH, warp=WARP)
    drafted = decoder.speculate(state).draft.drafted
    assert (drafted[:, 1] == END).all()  # the first unit is emitted: slot 1 is unit 2
    assert (drafted != END).any()


def test_rows_may_differ_and_greedy_decoding_obeys():
    table = torch.tensor([[-1, 0], [1, -1]])
    for sample in (True, False):
        output = run(DRAFTERS["left"](), Match(), 2, warp=Warp(guidance=GUIDANCE, sample=sample, forced=table)).units
        assert output[0][1] == 0 and output[1][0] == 1


def test_a_processor_cannot_undo_them():
    def never_the_end(ids, scores):
        return scores.index_fill(1, torch.tensor([END]), -torch.inf)

    never_the_end.speculative = "elementwise"
    output = run(DRAFTERS["left"](), Match(), 5, warp=Warp([never_the_end], guidance=GUIDANCE)).units
    assert all(row[2] == END and (row == END).sum() == 1 for row in output)
