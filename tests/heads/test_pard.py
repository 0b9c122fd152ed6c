"""A draft model that fills in masks: PARD. What it drafts, and that drafts change no text."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer as Core
from tokenizers import models
from torch import Tensor
from transformers import LlamaConfig, PreTrainedTokenizerFast

import mmspec
from mmspec.api.build import decoder_for
from mmspec.core.compile.pool import NAME
from mmspec.core.decoder import Decoder
from mmspec.core.rules import Match, Rejection, Rule
from mmspec.hosts.target import TransformersTarget
from mmspec.testing.tiny_models import SIZES, llama
from mmspec_text.drafters.pard import Pard, PardOptions, is_pard
from tests.captured.conftest import _traced_alone, lockstep, rounds_of  # noqa: F401  a fixture
from tests.heads.conftest import GREEDY, SAMPLED
from tests.support.examples.text import masked
from tests.support.random_models import random_model, small

CHAIN, TREE = {"form": "chain"}, {"form": "rerank", "width": 3, "nodes": 8}


def decoder(
    rule: Rule | None = None,
    k: int = 4,
    target: Any = None,
    shape: Any = "any",
    compile: bool | None = None,
    **options: Any,
) -> Decoder:
    drafter = Pard(PardOptions(**{"model": masked(), **options}))
    target = TransformersTarget(llama() if target is None else target)
    return Decoder(target, drafter, rule or Match(), k=k, shape=shape, compile=compile)


@pytest.mark.parametrize("warp", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_in_half_precision_of_one_shape(warp: Any, rows: dict[str, Tensor]) -> None:
    half = copy.deepcopy(llama()).bfloat16()
    draft_model = copy.deepcopy(masked()).bfloat16()
    ours = decoder(target=half, shape="one", k=3, model=draft_model).generate(rows, 30, seed=5, warp=warp)
    plain = Decoder(TransformersTarget(half), shape=ours.report.width or "any").generate(rows, 30, seed=5, warp=warp)
    assert all(torch.equal(a, b) for a, b in zip(ours.units, plain.units, strict=True))
    assert ours.report.accepted > 0, "nothing was accepted, so nothing was tested"


@pytest.mark.parametrize(
    ("form", "rule", "warp"),
    [
        (CHAIN, Match, SAMPLED),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                (CHAIN, Match, GREEDY),
                (TREE, Match, GREEDY),
                (TREE, Match, SAMPLED),
                (CHAIN, Rejection, SAMPLED),
            )
        ),
    ],
)
def test_captured_rounds_draft_by_themselves(
    form: dict[str, Any], rule: type, warp: Any, rows: dict[str, Tensor]
) -> None:
    vars(llama()).pop(NAME, None)
    eager, captured = (decoder(rule(), shape=None, compile=True, **form) for _ in range(2))
    eager.captures.refused = True
    assert lockstep(eager, captured, rows, 24, seed=3, warp=warp) > 3
    assert len(rounds_of(captured)) == 1 and rounds_of(captured)[0].plan.drafts is not None
    assert captured.generate(rows, 24, seed=4, warp=warp).report.accepted > 0


def test_by_name(tmp_path: Path) -> None:
    """A folder is known by its config; another draft model, and a head that drafts in one pass, are none."""
    masked().save_pretrained(tmp_path / "masked")
    found = decoder_for(llama(), drafter=str(tmp_path / "masked"))
    assert isinstance(found.drafter, Pard) and found.name == "pard" and found.k == 12
    small().save_pretrained(tmp_path / "small")
    assert decoder_for(llama(), drafter=str(tmp_path / "small")).name == "draft-model"
    assert not is_pard({"pard_token": 3}, ["embed_tokens.weight", "fc.weight", "mask_hidden"])
    with mmspec.enable(llama(), "pard", drafter=str(tmp_path / "masked"), k=3) as spec:
        out = llama().generate(torch.tensor([[1, 2, 3]]), max_new_tokens=9, do_sample=False)
    assert spec.report.drafted > 0
    assert torch.equal(out, llama().generate(torch.tensor([[1, 2, 3]]), max_new_tokens=9, do_sample=False))


def test_a_model_of_pard_2(tmp_path: Path) -> None:
    """Drafts as one of PARD does, and that this is but one of its modes is said."""
    model = copy.deepcopy(masked())
    model.config.pard2 = True
    model.save_pretrained(tmp_path)
    with pytest.warns(UserWarning, match=r"PARD-2 drafts without its target's states"):
        found = decoder_for(llama(), drafter=str(tmp_path))
    assert found.name == "pard" and found.generate(torch.tensor([[1, 2, 3]]), 9, seed=0).report.drafted > 0


def words(*said: str) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_object=Core(models.WordLevel({word: i for i, word in enumerate(said)}, "a"))
    )


def test_a_vocabulary_of_another_size(rows: dict[str, Tensor]) -> None:
    """One tokenizer whose vocabulary the draft model pads further: its mask stands where the target has no id."""
    wide = random_model(LlamaConfig(**{**SIZES, "vocab_size": 9}), head=8.0)
    for name, weight in wide.state_dict().items():
        weight[: len(llama().state_dict()[name])] = llama().state_dict()[name]
    wide.config.pard_token = 8
    named = {"tokenizer": words(*"abcdefg"), "assistant_tokenizer": words(*"abcdefg")}
    ours = decoder(model=wide, **named).generate(rows, 20, seed=5, warp=SAMPLED)
    plain = Decoder(TransformersTarget(llama()), None, Match(), k=0).generate(rows, 20, seed=5, warp=SAMPLED)
    assert all(torch.equal(a, b) for a, b in zip(ours.units, plain.units, strict=True)) and ours.report.accepted > 0
    vars(llama()).pop(NAME, None)
    captured = decoder(model=wide, shape=None, compile=True, **named)
    inside = captured.generate(rows, 20, seed=5, warp=SAMPLED)
    assert all(torch.equal(a, b) for a, b in zip(inside.units, plain.units, strict=True)) and inside.report.accepted > 0
    assert rounds_of(captured)[0].plan.drafts is not None
    with pytest.raises(ValueError, match="another tokenizer than the target, and its mask is a token of its own"):
        decoder(model=wide, **{**named, "assistant_tokenizer": words(*"abcdgfe")})


def test_bad_input() -> None:
    with pytest.raises(ValueError, match=r"pard needs a smaller model"):
        Pard(PardOptions())
    with pytest.raises(ValueError, match=r"draft model of pard: its config has no id mask_token_id .*pard_token"):
        Pard(PardOptions(model=small()))
    far = copy.deepcopy(masked())
    far.config.pard_token = 7
    with pytest.raises(ValueError, match="mask is the token 7, and it has 7 ids"):
        Pard(PardOptions(model=far))
