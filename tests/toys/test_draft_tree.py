"""Trees and chains of a draft model on the toys: the distribution is kept by every rule that uses q.

What `match` makes of them equals plain decoding (test_every_pair), which follows the joint (test_markov).
"""

import pytest
import torch

from mmspec.core.decoder import Decoder
from mmspec.core.drafters.draft_model import DraftModel
from mmspec.core.drafters.shapes import Beam, Branching, Chain
from mmspec.core.policies import Confidence
from mmspec.core.rules import Block, RecursiveRejection, Rejection
from mmspec.testing.oracles import exact_joint
from mmspec.testing.toys.grid import GridTarget
from mmspec.testing.toys.markov import MarkovTarget
from tests.support.cases import VOCAB, grid_case, markov_case, recurrence_case
from tests.support.laws import assert_follows
from tests.support.toys.recurrence import RecurrenceTarget

ROWS, LENGTH = 40_000, 4
TEXT, SPACE, GRID = markov_case(), recurrence_case(), grid_case()
NEAR = MarkovTarget((TEXT.target.table + MarkovTarget.random(VOCAB, seed=1).table) / 2)
BAD = MarkovTarget(-2 * TEXT.target.table)
RECURRENT, STRANGE = SPACE.target.near(5), RecurrenceTarget.random(VOCAB, seed=9)
CODES = GridTarget(2, (GRID.target.table + GridTarget.random(2, VOCAB, seed=1).table) / 2)


@pytest.mark.parametrize(
    ("case", "small", "shape", "rule", "least"),
    [
        # Good drafts of these two shapes are those of tests/mutants, on the core as it is.
        pytest.param(TEXT, NEAR, Branching((2, 2, 1)), RecursiveRejection(), 1.8, marks=pytest.mark.slow),
        (TEXT, BAD, Branching((2, 1)), RecursiveRejection(), 1.1),
        pytest.param(TEXT, NEAR, Beam(3), RecursiveRejection(), 1.8, marks=pytest.mark.slow),
        (TEXT, BAD, Beam(2), RecursiveRejection(), 1.1),
        (SPACE, RECURRENT, Chain(), Block(), 1.5),
        (SPACE, STRANGE, Chain(), Rejection(), 1.1),
        (SPACE, RECURRENT, Branching((2, 1, 2)), RecursiveRejection(), 1.8),
        (SPACE, RECURRENT, Beam(2), RecursiveRejection(), 1.8),
        (GRID, CODES, Beam(2), RecursiveRejection(), 1.3),
    ],
    ids=lambda x: type(x).__name__,
)
def test_the_distribution_is_kept(case, small, shape, rule, least):
    decoder = Decoder(case.target, DraftModel(small, shape), rule, k=3)
    reports = []

    def sample(seed, rows):
        output = decoder.generate(case.prompt(rows), LENGTH, seed=seed, warp=case.warp)
        reports.append(output.report)
        return torch.stack(output.units)

    p = assert_follows(sample, exact_joint(case.next_distribution, LENGTH, VOCAB), ROWS)
    print(f"p = {p:.4f}, acceptance length {reports[-1].acceptance_length:.2f}")
    assert reports[-1].acceptance_length > least and not reports[-1].faults


@pytest.mark.parametrize("shape", [Branching((2, 2)), Beam(2)], ids=lambda x: type(x).__name__)
def test_confidence_decides_before_the_draw(shape):
    decoder = Decoder(TEXT.target, DraftModel(NEAR, shape), RecursiveRejection(), k=2, policy=Confidence(2, 0.35))
    reports = []

    def sample(seed, rows):
        output = decoder.generate(TEXT.prompt(rows), LENGTH, seed=seed)
        reports.append(output.report)
        return torch.stack(output.units)

    assert_follows(sample, exact_joint(TEXT.next_distribution, LENGTH, VOCAB), ROWS)
    whole = Decoder(TEXT.target, DraftModel(NEAR, shape), RecursiveRejection(), k=2).generate(TEXT.prompt(2000), LENGTH)
    assert 0.1 < reports[-1].drafted / reports[-1].rows < 0.9 * whole.report.drafted / 2000, "it must cut some, not all"


def test_a_recurrent_drafter_keeps_the_state_of_the_true_history():
    """A recurrent draft model cannot roll back: it commits only accepted units, through refusals and empty rounds."""
    for shape in (Chain(), Branching((2, 2, 1)), Beam(3)):
        decoder = Decoder(SPACE.target, DraftModel(RECURRENT, shape), RecursiveRejection(), k=3)
        prompt = torch.tensor([[2, 0, 1], [-1, 1, 1]])
        state = decoder.start(prompt, 200, seed=0)
        while not state.finished:
            decoder.advance(state)
            memory = state.memory
            assert (state.emitted - 1 - memory.seen <= 1).all()
        for row, units in enumerate(state.output()):
            known = torch.cat([prompt[row][prompt[row] >= 0], units[: memory.seen[row]]])
            fresh = RECURRENT.start(known[None], 1, 1).cache.state[0]
            torch.testing.assert_close(memory.cache.state[row], fresh, rtol=1e-4, atol=1e-4)


def test_trees_beat_chains_and_match_beats_both():
    """Acceptance of sampled drafts of the same draft model, by rule."""
    length = {}
    for name, shape in (("chain", Chain()), ("tree", Branching((2, 2, 2)))):
        for rule in ("match", "recursive-rejection"):
            made = RecursiveRejection() if rule != "match" else None
            output = Decoder(TEXT.target, DraftModel(NEAR, shape), made, k=3).generate(TEXT.prompt(800), 40)
            length[name, rule] = output.report.acceptance_length
    assert length["tree", "match"] > length["chain", "match"] + 0.4, length
    assert length["tree", "recursive-rejection"] > length["chain", "recursive-rejection"] + 0.4, length
