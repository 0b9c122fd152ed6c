"""LANTERN's rule on trees: the joint of two units against the closed form, its measured bias, and its strict end."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from mmspec.core.decoder import Decoder
from mmspec.core.distributions import Categorical
from mmspec.core.drafters.draft_model import DraftModel
from mmspec.core.drafters.shapes import Rerank
from mmspec.core.noise import Round
from mmspec.core.philox import PhiloxSource
from mmspec.core.types import Draft, Scores
from mmspec.core.warp import Warp
from mmspec.testing.statistics import joint_p_value
from mmspec_image.rules.relaxed import Relaxed, RelaxedOptions
from tests.support.relaxed import nearest_codes, nearest_groups, tree_outcome
from tests.support.toys.picture import PictureTarget

VOCAB, ROWS = 6, 50_000
PARENTS, UNITS = [-1, -1, -1, 0, 0, 1], [4, 1, 3, 2, 5, 2]
"""Three children of the root, two of the first of them, one of the second."""
TREE = Rerank(frontier=2, children=3, nodes=7)
RULES: dict[str, dict[str, Any]] = {
    "lantern": {"k": 3, "delta": 0.3},
    "lantern, the paper's residual": {"k": 3, "delta": 0.3, "residual": "paper"},
    "lantern, the released residual": {"k": 2, "delta": 0.3, "residual": "released"},
    "lantern++": {"k": 3, "lam": 3.0},
}
STRICT: dict[str, dict[str, Any]] = {
    "k 0": {"k": 0},
    "delta 0": {"delta": 0.0, "residual": "paper"},
    "lam 1": {"lam": 1.0},
}
SLOW = [
    pytest.param(name, marks=pytest.mark.slow)
    for name in ("lantern++", "lantern, the paper's residual", "delta 0", "lam 1")
]


class Book:
    codebook = torch.randn(VOCAB, 3, generator=torch.Generator().manual_seed(5))


def bound(options: dict[str, Any], target: Any = Book) -> Relaxed:
    rule = Relaxed(RelaxedOptions(**options))
    rule.bind(target)
    return rule


def expected(rule: Relaxed, p: Tensor, children: list[int], book: Tensor = Book.codebook) -> Any:
    options = rule.options
    groups = partial(nearest_groups, k=options.k, delta=options.delta, lam=options.lam, codebook=book)
    near = nearest_codes(book, options.k + 1) if options.residual == "released" else None
    return tree_outcome(p, children, groups, paper=options.residual == "paper", near=near)


def distributions() -> Tensor:
    """The target's at every node, `[node, vocab]`."""
    g = torch.Generator().manual_seed(11)
    return torch.softmax(torch.randn(1 + len(UNITS), VOCAB, generator=g) * 1.2, -1)


def joint_of(rule: Relaxed) -> Tensor:
    """Of the first two units, `[vocab, vocab + 1]`; the last column: the second one is not emitted in this round."""
    p, joint = distributions(), torch.zeros(VOCAB, VOCAB + 1, dtype=torch.float64)
    children: dict[int, list[int]] = {parent: [] for parent in range(-1, len(UNITS))}
    for node, parent in enumerate(PARENTS):
        children[parent].append(node)
    first = expected(rule, p[0], [UNITS[node] for node in children[-1]]).distribution
    for unit in range(VOCAB):
        node = next((node for node in children[-1] if UNITS[node] == unit), None)
        if node is None:
            joint[unit, VOCAB] = first[unit]
        else:
            behind = expected(rule, p[1 + node], [UNITS[child] for child in children[node]])
            joint[unit, :VOCAB] = first[unit] * behind.distribution
    return joint


def decided(rule: Relaxed, seed: int) -> Tensor:
    """The first two units of many rows, `[row, 2]`; `VOCAB` where there is no second one."""
    p = distributions()
    units = torch.tensor(UNITS).expand(ROWS, -1)
    draft = Draft.tree(units, PARENTS).rooted(torch.zeros(ROWS).long(), torch.full((ROWS,), 5))
    scores = Scores(Categorical(p.expand(ROWS, -1, -1)), torch.ones(ROWS, len(p), dtype=torch.bool))
    verdict = rule.accept(draft, scores, Round(PhiloxSource.seeded(seed, ROWS), torch.zeros(ROWS).long(), [0] * ROWS))
    node = verdict.path.clamp(min=0)
    path = torch.where(verdict.path < 0, VOCAB, draft.units.gather(1, node))
    path = torch.cat([path, torch.full((ROWS, 1), VOCAB)], 1)
    return path.scatter(1, verdict.length[:, None], verdict.unit[:, None])[:, :2]


@pytest.mark.parametrize("name", ["lantern", "k 0", *SLOW])
def test_the_joint_of_two_units_follows_the_closed_form(name: str) -> None:
    """And it is not the target's, or this test is blind; at the strict end it is."""
    rule = bound({**RULES, **STRICT}[name])
    units = decided(rule, seed=3)
    assert joint_p_value(units, joint_of(rule)) > 1e-4
    assert (joint_p_value(units, joint_of(bound({"k": 0}))) > 1e-4) == (name in STRICT)


def test_siblings_are_judged_by_what_earlier_ones_left() -> None:
    """Groups under p instead of r, as if every sibling were the first, give another distribution."""
    rule, p = bound(RULES["lantern"]), distributions()[0]
    groups = nearest_groups(p, 3, 0.3, None, Book.codebook)
    wrong = tree_outcome(p, [4, 1, 3], lambda rest: groups).distribution
    assert float((wrong - expected(rule, p, [4, 1, 3]).distribution).abs().sum()) > 0.02


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", [*RULES, "k 0"])
def test_a_run_reports_what_a_recount_finds(name: str, dtype: torch.dtype) -> None:
    """Reranked trees of a draft model, rows that end at different lengths."""
    target = PictureTarget(3, PictureTarget.random(3, VOCAB, seed=3, sharpness=1.0).table.to(dtype))
    rule = bound({**RULES, **STRICT}[name], target)
    decoder = Decoder(target, DraftModel(PictureTarget.random(3, VOCAB, seed=4), TREE), rule, k=3)
    state = decoder.start(torch.ones(12).long(), 8, seed=1, ends=2, warp=Warp.sampling(guidance=2.0))
    tv = excess_acceptance = decided_nodes = branched = 0.0
    while not state.finished:
        step = decoder.settle(state, decoder.speculate(state))
        state.sync()
        draft, p = step.draft, step.scores.distribution.probs
        parents = draft.index.parent.expand(len(draft.units), -1)
        for row, count in enumerate(step.count.tolist()):
            path = [0, *(node for node in step.verdict.path[row].tolist() if node >= 0)]
            for node in path[:count]:
                there = [n for n in range(1, draft.nodes) if draft.valid[row, n] and int(parents[row, n]) == node]
                if there:
                    slow = expected(rule, p[row, node], [int(draft.units[row, n]) for n in there], target.codebook)
                    tv, excess_acceptance = tv + slow.tv, excess_acceptance + slow.excess_acceptance
                    decided_nodes, branched = decided_nodes + 1, branched + (len(there) > 1)
    report = state.report
    assert branched > 0 and (tv > 0.1) == (name in RULES)
    assert report.bias.altered == pytest.approx(tv / 12, rel=1e-5, abs=1e-6)
    assert report.bias.excess_acceptance == pytest.approx(excess_acceptance / decided_nodes, rel=1e-4, abs=1e-6)


def test_relaxing_accepts_more_and_greedy_trees_are_not_altered() -> None:
    target, lengths = PictureTarget.random(3, VOCAB, seed=3), []
    for options in (STRICT["k 0"], RULES["lantern"]):
        drafter = DraftModel(PictureTarget.random(3, VOCAB, seed=4), TREE)
        decoder = Decoder(target, drafter, bound(options, target), k=3)
        lengths.append(decoder.generate(torch.ones(200).long(), 8, seed=2).report.acceptance_length)
        greedy = decoder.generate(torch.ones(20).long(), 8, warp=Warp.sampling(temperature=0)).report
        assert greedy.bias.altered == 0
    assert lengths[1] > 1.02 * lengths[0], lengths
