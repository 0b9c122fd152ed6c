"""`lenient`: its closed form, its bound, its worked equation, its two ends, its label."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import mmspec
from mmspec.compare.equality import assert_same
from mmspec.core.distributions import Categorical
from mmspec.core.noise import Round
from mmspec.core.philox import PhiloxSource
from mmspec.core.types import Draft, Scores, Verdict
from mmspec.testing.statistics import joint_p_value
from mmspec_zoo.relaxed.lenient import Lenient, LenientOptions, variation


def judged(x: Tensor, q: Categorical | None, p: Tensor, epsilon: float) -> Verdict:
    """A draft of one unit `x [row, 1]` under p `[unit]`."""
    rows = len(x)
    draft = Draft.chain(x, q).rooted(torch.zeros(rows, dtype=torch.int64), torch.full((rows,), 5))
    scores = Scores(Categorical(p.expand(rows, 2, len(p))), torch.ones(rows, 2, dtype=torch.bool))
    noise = Round(PhiloxSource.seeded(3, rows), torch.zeros(rows, dtype=torch.int64), [0] * rows)
    return Lenient(LenientOptions(epsilon=epsilon)).accept(draft, scores, noise)


def test_a_worked_example() -> None:
    """p / ε = (1, 0.6, 0.4): of q = (0.2, 0.7, 0.1) 0.2 + 0.6 + 0.1 stays; the other 0.1 goes as (0.8, 0, 0.3)."""
    p, q = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.7, 0.1])
    tv, excess = variation(p, q, p / 0.5)
    emitted = torch.tensor([0.2 + 0.1 * 8 / 11, 0.6, 0.1 + 0.1 * 3 / 11])
    assert float(tv) == pytest.approx(float((emitted - p).abs().sum() / 2)) == pytest.approx(0.3)
    assert float(excess) == pytest.approx(0.9 - (0.2 + 0.3 + 0.1))


@pytest.mark.parametrize("epsilon", [1.0, 0.6, 0.2])
@pytest.mark.parametrize("drawn", [True, False], ids=["from q", "one unit"])
def test_the_output_of_a_node_follows_the_closed_form(epsilon: float, drawn: bool) -> None:
    generator, rows, vocab = torch.Generator().manual_seed(11), 50_000, 6
    p, q = (torch.softmax(torch.randn(vocab, generator=generator) * 1.5, -1) for _ in range(2))
    q = q if drawn else torch.nn.functional.one_hot(p.argsort()[-2], vocab).float()
    x = torch.multinomial(q, rows, replacement=True, generator=generator)[:, None]
    verdict = judged(x, Categorical(q.expand(rows, 1, vocab)) if drawn else None, p, epsilon)
    first = torch.where(verdict.length > 0, x[:, 0], verdict.unit)
    kept = torch.minimum(q, p / epsilon)
    residual = (p / epsilon - q).clamp(min=0)
    out = kept + (1 - kept.sum()) * residual / residual.sum()
    assert joint_p_value(first[:, None], out) > 1e-4 and bool((out <= p / epsilon + 1e-6).all())
    assert (joint_p_value(first[:, None], p) < 1e-4) == (epsilon < 1), "the bias must be seen, or this test is blind"
    assert verdict.tv is not None and verdict.excess_acceptance is not None
    assert torch.allclose(verdict.tv[:, 0], (out - p).abs().sum() / 2, atol=1e-6) and not verdict.tv[:, 1].any()
    rate = float((verdict.length > 0).float().mean())
    assert abs(rate - float(torch.minimum(p, q).sum() + verdict.excess_acceptance[0, 0])) < 5e-3


@pytest.mark.compiled
def test_a_greedy_call_is_greedy_decoding(
    target: Any, good: Any, prompts: Callable, theirs: Callable, ours: Callable
) -> None:
    call = {"max_new_tokens": 24, "do_sample": False}
    mine = ours(target, prompts(3), 0, {"method": "draft-model", "model": good, "rule": "lenient"}, **call)
    assert_same(mine.ids, theirs(target, prompts(3), 0, **call), mine.state)
    assert mine.report.bias.tv == 0 and mine.report.accepted > 0


def test_a_sampled_call_says_its_bias(target: Any, bad: Any, prompts: Callable) -> None:
    lengths = []
    for epsilon in (1.0, 0.3, 0.01):
        with mmspec.enable(target, "draft-model", model=bad, rule="lenient", epsilon=epsilon, k=4) as spec:
            torch.manual_seed(0)
            target.generate(**prompts(3), max_new_tokens=40, do_sample=True)
        report: Any = spec.report
        assert report.exactness == "lossy" and (report.bias.tv > 0.02) == (epsilon < 1)
        assert epsilon < 1 or report.bias.tv < 1e-6
        lengths.append(report.acceptance_length)
    assert lengths[0] < lengths[1] < lengths[2]
    with pytest.raises(ValueError, match="epsilon"):
        mmspec.enable(target, "draft-model", model=bad, rule="lenient", epsilon=0.0)
