"""Toy state-space model: a tree in one pass, a commit from what that pass left behind."""

import pytest
import torch

from mmspec.core.decoder import Decoder
from mmspec.core.rules import Block, Match, RecursiveRejection
from mmspec.core.types import Draft
from mmspec.testing.oracles import exact_joint
from mmspec.testing.toys.markov_drafters import MarkovTree
from tests.support.cases import VOCAB, recurrence_case
from tests.support.cycle import Cycle
from tests.support.laws import assert_follows

LENGTH = 3
CASE = recurrence_case()
TARGET = CASE.target


def logits_after(units):
    """Scores after `units [length]`, from scratch."""
    return TARGET.start(units[None], 1, 1).output.logits[0, 0]


@pytest.mark.parametrize(
    ("name", "rule"),
    [(None, Match), ("chain", Block), ("tree without", RecursiveRejection)],
)
def test_the_distribution_is_kept(name, rule):
    decoder = Decoder(TARGET, CASE.drafters[name]() if name else None, rule(), k=3)
    reports = []

    def sample(seed, rows):
        output = decoder.generate(CASE.prompt(rows), LENGTH, seed=seed)
        reports.append(output.report)
        return torch.stack(output.units)

    p = assert_follows(sample, exact_joint(CASE.next_distribution, LENGTH, VOCAB))
    print(f"p = {p:.4f}, acceptance length {reports[-1].acceptance_length:.2f}")
    if name:
        assert reports[-1].acceptance_length > 1.05


@pytest.mark.parametrize("shared", [True, False])
def test_tree_scores_equal_path_by_path_recomputation(shared):
    """Random trees, one for all rows or one each: every node's scores are those of its own path."""
    generator = torch.Generator().manual_seed(0)
    rows, nodes = 3, 9
    prompt = torch.randint(0, VOCAB, (rows, 4), generator=generator)
    parents = torch.stack([torch.randint(-1, max(i, 0), (rows,), generator=generator) for i in range(nodes)], 1)
    units = torch.randint(0, VOCAB, (rows, nodes), generator=generator)
    root = torch.tensor([0, 2, 1])
    draft = Draft.tree(units, parents[0].tolist() if shared else parents).rooted(root, torch.full((rows,), nodes))
    output = TARGET.verify(TARGET.start(prompt, 1, 1).cache, draft)
    for row in range(rows):
        for node in range(nodes + 1):
            tree_row = 0 if shared else row
            path = draft.units[row][draft.index.ancestor[tree_row, node]]
            expected = logits_after(torch.cat([prompt[row], path]))
            torch.testing.assert_close(output.logits[row, node], expected, rtol=1e-5, atol=1e-5)


def test_padded_prompts_equal_bare_ones():
    padded = torch.tensor([[-1, -1, 1, 2], [0, 1, 1, 2]])
    decoder = Decoder(TARGET, CASE.drafters["tree without"](), k=3)
    together = decoder.generate(padded, 15, seed=[5, 5]).units
    alone = decoder.generate(padded[:1, 2:], 15, seed=[5]).units[0]
    assert torch.equal(together[0], alone)
    assert not torch.equal(*together), "the longer prompt must matter"


def test_200_commits_with_empty_rounds_equal_recomputation():
    decoder = Decoder(TARGET, MarkovTree(CASE.drafters["chain"]().table), k=3, policy=Cycle(3, 3, 0))
    prompt = torch.tensor([[2, 0, 1], [-1, 1, 1]])
    state = decoder.start(prompt, 1200, seed=0)
    depths = set()
    for _ in range(200):
        before = list(state.host.emitted)
        decoder.advance(state)
        depths |= {now - then for now, then in zip(state.host.emitted, before, strict=True)}
    assert depths >= {1, 2, 3}, "empty rounds and paths of several lengths"
    for row, units in enumerate(state.output()):
        known = torch.cat([prompt[row][prompt[row] >= 0], units[:-1]])  # the root is not in the target yet
        fresh = TARGET.start(known[None], 1, 1).cache.state[0]
        torch.testing.assert_close(state.cache.state[row], fresh, rtol=1e-5, atol=1e-5)


def test_finished_rows_keep_their_state():
    decoder = Decoder(TARGET, CASE.drafters["tree without"](), k=3)
    state = decoder.start(CASE.prompt(12), 40, seed=1, ends=0)
    held = {}
    while not state.finished:
        decoder.advance(state)
        for row, done in enumerate(state.host.done):
            if done:
                now = state.cache.state[row].clone()
                assert torch.equal(held.setdefault(row, now), now)
    assert len(held) == 12
