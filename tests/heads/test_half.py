"""Trained heads in bfloat16: under one shape texts equal plain's of the same width to the bit; and laws for their q."""

import copy
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from mmspec.core.decoder import Decoder
from mmspec.core.rules import Match, RecursiveRejection, Rejection, Rule
from mmspec.hosts.target import TransformersTarget
from mmspec.registry import installed
from mmspec.testing.statistics import LEVEL
from mmspec.testing.tiny_models import llama, prompt
from tests.heads.conftest import SAMPLED, checkpoint
from tests.support.examples import EXAMPLES

CHAIN: dict[str, Any] = {"form": "chain"}
TREE: dict[str, Any] = {"form": "rerank", "width": 3, "nodes": 8}
HEADS = ("eagle", "mtp", "medusa", "dflash", "ppd", "gated-lora")


@cache
def half() -> Any:
    return copy.deepcopy(llama()).bfloat16()


def drafter(kind: str, **form: Any) -> Any:
    """A drafter with the random head of the conformance kit."""
    example = EXAMPLES[f"text:{kind}"]()[0]
    options = type(example.options)(**{**vars(example.options), **form})
    return installed().get("drafter", kind).load()(options)


def decoder(kind: str, rule: Rule, k: int, **how: Any) -> Decoder:
    shape = how.pop("shape", "any")
    return Decoder(TransformersTarget(half()), drafter(kind, **how), rule, k=k, shape=shape)


def texts(decoder: Decoder, seed: int) -> list[Tensor]:
    """Texts of a ragged batch of three."""
    return decoder.generate(prompt([0, 1, 2]), 40, seed=[3 * seed + row for row in range(3)], warp=SAMPLED).units


def assert_one_width(kind: str, form: dict[str, Any], seeds: int) -> None:
    ours = decoder(kind, Match(), 3, shape="one", **form)
    accepted = 0
    for seed in range(seeds):
        output = ours.generate(prompt([0, 1, 2]), 40, seed=[3 * seed + row for row in range(3)], warp=SAMPLED)
        plain = Decoder(TransformersTarget(half()), shape=output.report.width or "any")
        assert all(torch.equal(a, b) for a, b in zip(output.units, texts(plain, seed), strict=True))
        accepted += output.report.accepted
    assert accepted > 10 * seeds, "nothing was accepted, so nothing was tested"


@pytest.mark.parametrize("head", ["eagle-3", "latent"])
def test_a_tree_of_eagle_equals_plain_of_its_width(head: str) -> None:
    assert_one_width("eagle", TREE | {"model": checkpoint(head), "probe": False}, 1)


@pytest.mark.slow
@pytest.mark.parametrize("form", [CHAIN, TREE], ids=lambda form: form["form"])
@pytest.mark.parametrize("kind", HEADS)
def test_texts_equal_plain_of_one_width(kind: str, form: dict[str, Any]) -> None:
    """Prompt tokens and masks are nodes of the pass, too: the report counts them."""
    assert_one_width(kind, form, 8)


@pytest.mark.slow
def test_texts_of_sparse_trees_equal_plain_of_one_width() -> None:
    """Rows carry different prompt tokens in a pass of one width."""
    assert_one_width("ppd", vars(EXAMPLES["text:ppd"]()[-1].options), 4)


@pytest.mark.slow
def test_texts_of_two_widths_part() -> None:
    """Else the tests here would show nothing."""
    wide, narrow = (Decoder(TransformersTarget(half()), shape=shape) for shape in (9, 1))
    pairs = ((texts(wide, seed), texts(narrow, seed)) for seed in range(24))
    assert any(not torch.equal(a, b) for pair in pairs for a, b in zip(*pair, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "rule", "form"),
    [
        ("eagle", RecursiveRejection, {"form": "branching", "branching": (2, 2)}),
        *((kind, Rejection, CHAIN) for kind in ("eagle", "mtp", "medusa", "dflash")),
    ],
)
def test_the_law_of_rules_that_use_q(kind: str, rule: type, form: dict[str, Any], law: Callable) -> None:
    """The q of a head is rounded to bfloat16 and then drawn from: the rule is given the one that was drawn from."""
    assert law(decoder(kind, rule(), 2, **form), least=1.05, model=half()) > LEVEL
