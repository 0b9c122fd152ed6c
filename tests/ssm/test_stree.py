"""STree: the static shape, the size that is chosen, and the text, which it never changes."""

from typing import Any

import pytest
import torch

import mmspec
from mmspec.bench import timing
from mmspec.compare.equality import assert_same, stock
from mmspec.core.drafters.shapes import Static
from mmspec.core.drafters.static_tree import expected_units, likeliest_tree
from mmspec_ssm.drafters.stree import Stree, StreeOptions
from mmspec_ssm.target import RecurrentTarget
from tests.support.zoo import build, noisy

RATES = (0.6, 0.2, 0.1)


@pytest.fixture(scope="module")
def hybrid() -> Any:
    return build("bamba")


def prompts() -> dict[str, torch.Tensor]:
    ids = torch.randint(3, 131, (3, 12), generator=torch.Generator().manual_seed(0))
    mask = torch.arange(12) >= torch.tensor([0, 5, 2])[:, None]
    return {"input_ids": ids * mask, "attention_mask": mask.long()}


def test_the_shape_is_the_likeliest_tree_and_budgets_cut_levels() -> None:
    parents, ranks = likeliest_tree(RATES, 4, 12)
    shape = Static(parents, ranks)
    assert shape.levels(9) == 4 and shape.width(9) == 12 and shape.parents(9) == parents
    assert shape.widest == 3 and shape.levels(2) == 2
    top = shape.parents(2)
    assert top == parents[: len(top)] and shape.width(2) == len(top) == shape.fed(3)
    chances = (_chance(parents, ranks, node) for node in range(12))
    assert expected_units(parents, ranks, RATES) == pytest.approx(1 + sum(chances))


def _chance(parents: tuple[int, ...], ranks: tuple[int, ...], node: int) -> float:
    return RATES[ranks[node]] * (_chance(parents, ranks, parents[node]) if parents[node] >= 0 else 1.0)


@pytest.mark.thinned(1)
@pytest.mark.parametrize("rule", ["match", "recursive-rejection"])
@pytest.mark.parametrize("shape", ["tree", "chain"])
@pytest.mark.compiled
def test_greedy_text_is_transformers_own(hybrid: Any, rule: str, shape: str) -> None:
    """With a recurrent drafter that is right often enough that trees are walked."""
    call = dict(do_sample=False, max_new_tokens=16)
    run = stock(hybrid, prompts(), 0, **call)
    options = dict(rates=RATES, nodes=10, form=shape)
    with mmspec.enable(hybrid, "stree", drafter=noisy(hybrid, 0.02), rule=rule, k=4, **options) as enabled:
        assert_same(hybrid.generate(**prompts(), **call), run)
    assert enabled.report is not None and enabled.report.acceptance_length > 1.5


@pytest.mark.compiled
def test_sampled_text_is_transformers_own(hybrid: Any) -> None:
    call = dict(do_sample=True, top_k=0, temperature=0.8, max_new_tokens=16)
    run = stock(hybrid, prompts(), 0, **call)
    with mmspec.enable(hybrid, "stree", drafter=noisy(hybrid, 0.02), rates=RATES, nodes=10, k=4):
        torch.manual_seed(0)
        assert_same(hybrid.generate(**prompts(), **call), run, torch.get_rng_state())


@pytest.mark.parametrize(
    ("seconds", "nodes"),
    [
        (lambda n: 1.0, 31),  # a pass costs the same whatever its size: as large as there is
        (lambda n: float(n), 1),  # every node costs as much as a pass: hardly any
        (lambda n: 1.0 if n <= 12 else 3.0, 11),  # a step in the hardware
    ],
)
def test_the_size_is_what_the_machine_says(
    hybrid: Any, seconds: Any, nodes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafter = Stree(StreeOptions(model=hybrid, rates=RATES))

    def measured(target: Any, inputs: Any, sizes: Any, repeats: int, of: Any) -> dict[int, float]:
        return {n: 0.0 if target is drafter.model else seconds(n) for n in sizes}

    monkeypatch.setattr(timing, "pass_seconds", measured)
    drafter.bind(RecurrentTarget(hybrid))
    assert drafter.width(8) == nodes


def test_the_size_is_really_measured(hybrid: Any) -> None:
    drafter = Stree(StreeOptions(model=hybrid))
    drafter.bind(RecurrentTarget(hybrid))
    assert drafter.width(8) + 1 in timing.SIZES


def test_bad_options_are_refused() -> None:
    with pytest.raises(ValueError, match="needs a smaller model"):
        mmspec.enable(build("bamba"), "stree")
    for rates in ((), (0.2, 0.6), (0.9, 0.8)):
        with pytest.raises(ValueError, match="falling, and at most 1 together"):
            StreeOptions(rates=rates)
    with pytest.raises(ValueError, match="nodes"):
        mmspec.enable(build("bamba"), "stree", drafter=build("bamba"), nodes=1000)
