"""Under `match` a head of any family changes no token: the text is that of plain decoding; and laws for its q."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mmspec.core.decoder import Decoder
from mmspec.core.rules import Block, Match, RecursiveRejection, Rejection
from mmspec.hosts.target import TransformersTarget
from mmspec.testing.statistics import LEVEL
from mmspec.testing.tiny_models import llama, prompt
from tests.heads.conftest import GREEDY, SAMPLED
from tests.heads.families import BOUNDARIES, FAMILIES, PUBLISHED
from tests.support.head_equality import assert_equal_to_transformers
from tests.support.zoo import build

FORMS: list[dict[str, Any]] = [{"form": "chain"}, {"form": "rerank", "width": 3, "nodes": 8}]
CHAIN, HEAP = FORMS[0], {"form": "heap", "width": 2, "nodes": 4}
LAWS = [(Rejection, CHAIN), (Block, CHAIN), (RecursiveRejection, {"form": "branching", "branching": (2, 2)})]
LAWS += [(RecursiveRejection, HEAP)]
forms = pytest.mark.parametrize("form", FORMS, ids=lambda form: form["form"])


@cache
def plain(batch: int, sampled: bool) -> list[Tensor]:
    """The units of plain decoding."""
    decoder = Decoder(TransformersTarget(llama()), None, Match(), k=0)
    return decoder.generate(prompt(range(batch)), 30, seed=5, warp=SAMPLED if sampled else GREEDY).units


@pytest.mark.filterwarnings("error:drafter .* failed")
@pytest.mark.thinned
@pytest.mark.compiled
@forms
@pytest.mark.parametrize("sampled", [False, True], ids=["greedy", "sampled"])
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if "plain" in family.fast else [pytest.mark.slow])
        for name, family in FAMILIES.items()
        if family.law is not None
    ],
)
def test_equal_to_plain(name: str, sampled: bool, form: dict[str, Any], tmp_path: Path) -> None:
    """A ragged batch of three, and a row alone."""
    ours = FAMILIES[name].decoder(tmp_path, Match(), **form)
    for batch in (3, 1):
        output = ours.generate(prompt(range(batch)), 30, seed=5, warp=SAMPLED if sampled else GREEDY)
        assert all(torch.equal(a, b) for a, b in zip(output.units, plain(batch, sampled), strict=True))
        assert output.report.drafted > 0 and (batch == 1 or output.report.accepted > 0), "so nothing was tested"


@pytest.mark.slow
@pytest.mark.compiled
@forms
@pytest.mark.parametrize("architecture", BOUNDARIES)
@pytest.mark.parametrize("name", PUBLISHED)
def test_equal_to_transformers(
    name: str, architecture: str, form: dict[str, Any], prompts: Callable, tmp_path: Path
) -> None:
    """By name, and with a live drafter."""
    model, head = build(architecture), PUBLISHED[name]
    folder = str(head.save(tmp_path, model, architecture))
    named = {"drafter": folder, **form} | ({} if head.method is None else {"method": head.method})
    assert_equal_to_transformers(model, prompts, named, {"drafter": head.live(folder, **form)})


@pytest.mark.parametrize(
    ("name", "rule", "form"),
    [
        pytest.param(name, rule, form, marks=[] if name == "pruned" and form is not HEAP else [pytest.mark.slow])
        for name, family in FAMILIES.items()
        for rule, form in LAWS
        if family.law is not None and (form is not HEAP or name in ("eagle-3", "pruned"))
    ],
)
def test_the_law_of_rules_that_use_q(
    name: str, rule: type, form: dict[str, Any], law: Callable, tmp_path: Path
) -> None:
    """A head's own distribution on the way, all ids or a part of them."""
    family = FAMILIES[name]
    assert family.law is not None
    assert law(family.decoder(tmp_path, rule(), k=2, **form), family.law, family.least) > LEVEL
