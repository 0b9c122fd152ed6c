"""Heads that do not fit, and files that are no heads: bad input of every kind to every family.

A row is a head, what is changed of its file (entries of `config.json`, tensors by our names; None leaves one out), what
the error says, and the target, a Llama of 6 layers, 64 wide, with 131 ids, where it is another one. Heads that step
along paths have the Llama of seven ids as their target.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch

import mmspec
from mmspec.core.decoder import Decoder
from mmspec.core.warp import Warp
from mmspec.hosts.target import TransformersTarget
from mmspec.testing import tiny_models
from mmspec.testing.toys.markov import MarkovTarget
from mmspec_text.drafters.dflash import DFlash, DFlashOptions
from mmspec_text.drafters.eagle import Eagle, EagleOptions
from mmspec_text.drafters.falcon import Falcon, FalconOptions
from mmspec_text.drafters.heads.pathwise.drafter import PathOptions
from mmspec_text.drafters.p_eagle import PEagle, PEagleOptions
from tests.heads.test_falcon import STORED as FALCON
from tests.support import dflash_layouts, eagle_layouts, p_eagle_layouts, path_heads
from tests.support.eagle_layouts import FIRST, TARGET, VOCAB
from tests.text.conftest import llama

EAGLE = eagle_layouts.LAYOUTS["eagle-3"]
ZLAB = dflash_layouts.LAYOUTS["dflash"]


@dataclass(frozen=True)
class Head:
    """A layout, and the drafter that reads it."""

    stored: Any
    drafter: Callable[..., Any]
    target: Callable[..., Any] = lambda **config: llama(**{"num_hidden_layers": 6, **config})


def head(layout: Any, drafter: Any, options: Any) -> Head:
    return Head(layout, lambda folder, **more: drafter(options(model=folder, **more)))


def on_path(name: str) -> Head:
    layout = path_heads.LAYOUTS[name]
    return Head(layout, lambda folder, **more: layout.drafter(PathOptions(model=folder, **more)), tiny_models.llama)


HEADS: dict[str, Head] = {
    "eagle": head(EAGLE, Eagle, EagleOptions),
    "eagle-four-states": head(eagle_layouts.LAYOUTS["sliding-four-features"], Eagle, EagleOptions),
    "medusa-as-eagle": head(
        replace(EAGLE, shapes={"0.0.linear.weight": (4, 4), "0.1.weight": (4, 4)}, pruned=False), Eagle, EagleOptions
    ),
    "eagle-without-a-gate": head(
        replace(EAGLE, shapes={k: v for k, v in FIRST.items() if "gate" not in k}, pruned=False), Eagle, EagleOptions
    ),
    "p-eagle": head(p_eagle_layouts.LAYOUTS["speculators"], PEagle, PEagleOptions),
    "p-eagle-as-eagle": head(p_eagle_layouts.LAYOUTS["speculators"], Eagle, EagleOptions),
    "eagle-as-p-eagle": head(EAGLE, PEagle, PEagleOptions),
    "falcon": head(FALCON, Falcon, FalconOptions),
    "falcon-as-eagle": head(FALCON, Eagle, EagleOptions),
    **{
        name: head(dflash_layouts.LAYOUTS[name], DFlash, DFlashOptions)
        for name in ("dflash", "speculators", "dspark", "dflash-windows")
    },
    "eagle-as-dflash": head(EAGLE, DFlash, DFlashOptions),
    **{name: on_path(name) for name in (*path_heads.KINDS, "medusa-vllm-pruned")},
}


@dataclass(frozen=True)
class Bad:
    head: str
    said: str
    config: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, Any] = field(default_factory=dict)
    target: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)


def inner(**changed: Any) -> dict[str, Any]:
    return {"dflash_config": {**ZLAB.config["dflash_config"], **changed}}


FOUR, UP = torch.zeros(4, 4), "layers.0.mlp.up_proj.weight"
WIDE = {"lm_head.weight": torch.zeros(140, TARGET), "d2t": None, "t2d": None}
PREFIX = "prefix_embeding_layer.layers.0"
CONFIDENCE = "confidence_head.proj"
OF_ANOTHER_TARGET = [
    *(
        Bad(name, said, target=target)
        for name in ("eagle", "p-eagle", "dflash")
        for said, target in (
            ("states of 64 numbers, and those of the target have 128", {"hidden_size": 128}),
            ("made for 131 ids, and the target has 140", {"vocab_size": 140}),
        )
    ),
    Bad("eagle", "names id 96, and the target has 90", target={"vocab_size": 90}),
    Bad("eagle", "layers 2, 5, 9 of its target, and this one has 6", {"eagle_aux_hidden_state_layer_ids": [2, 5, 9]}),
    Bad("eagle-four-states", "not say which of the target's 6 layers", {"eagle_aux_hidden_state_layer_ids": None}),
    Bad("eagle", "scores 140 ids, and its target has 131", {"draft_vocab_size": 140}, WIDE),
    Bad(
        "eagle",
        "d2t names id 139, and the target has 131",
        {"draft_vocab_size": 140, "vocab_size": 140},
        {**WIDE, "d2t": torch.zeros(140, dtype=torch.int64)},
    ),
    Bad("eagle", "not 2 states of 64", {"num_aux_hidden_states": 2}),
    Bad("p-eagle", "mask token 131, and embeddings of 131 ids", {"mask_token_id": 131}),
    Bad("dflash", "reads the layers 1, 3 of its target, and this one has 3", target={"num_hidden_layers": 3}),
    Bad("speculators", "names id 96, and the target has 90", target={"vocab_size": 90}),
    Bad("speculators", "does not say which of the target's", {"aux_hidden_state_layer_ids": None}),
    Bad("dflash", "reads 2 states and names 3 layers", inner(target_layer_ids=[1, 2, 3])),
    Bad("dflash", "mask token 151, and there are embeddings", inner(mask_token_id=151)),
    *(Bad(name, "wants 8 siblings, and the head scores 7", options={"width": 8}) for name in path_heads.KINDS),
]
OF_ANOTHER_KIND = [
    Bad("medusa-as-eagle", r"EAGLE-1 is the nearest, and fc.weight.* is missing"),
    Bad("eagle-without-a-gate", r"EAGLE-1 is the nearest, and layers.0.mlp.gate_proj.weight is missing"),
    Bad("eagle", "P-EAGLE", tensors={"mask_hidden": torch.zeros(1, 1, 3 * TARGET)}),
    Bad("p-eagle-as-eagle", r"P-EAGLE \(mask_hidden\), which the drafter p-eagle takes"),
    Bad("eagle-as-p-eagle", r"no mask_hidden: .* the drafter eagle takes it"),
    Bad("falcon-as-eagle", r"Falcon \(lstm.weight_ih_l0\), which the drafter falcon takes"),
    Bad("eagle-as-dflash", r"no layout of a DFlash head; dflash is the nearest, and hidden_norm.weight"),
    Bad("eagle", r"eagel3.*eagle3", {"speculators_model_type": "eagel3"}),
    Bad("p-eagle", r"peagl.*peagle", {"speculators_model_type": "peagl"}),
    Bad("speculators", r"dflsh.*dflash", {"speculators_model_type": "dflsh"}),
]
NOT_WHOLE = [
    *(
        Bad(name, said, tensors=tensors)
        for name in ("eagle", "dflash")
        for said, tensors in (
            ("quantised", {"fc.weight": torch.zeros(TARGET, TARGET, dtype=torch.int8)}),
            ("has no part", {"layers.7.mlp.up_proj.weight": FOUR}),
            ("of another shape", {UP: torch.zeros(TARGET, TARGET)}),
        )
    ),
    Bad("p-eagle", "mask_hidden", tensors={"mask_hidden": None}),
    Bad("falcon", r"lstm.weight_ih_l1", tensors={"lstm.weight_ih_l1": None}),
    Bad("dflash", r"markov_head.markov_w1.weight is missing", {"markov_rank": 5}),
    Bad("dflash", r"confidence_head.proj.weight is missing", {"enable_confidence_head": True}),
    Bad("dspark", r"confidence_head\.proj\.bias", tensors={f"{CONFIDENCE}.bias": None}),
    *(
        Bad(
            "dspark", rf"the shape \[1, {width}\], and a guess", tensors={f"{CONFIDENCE}.weight": torch.zeros(1, width)}
        )
        for width in (60, 65, 80)
    ),
    Bad("hydra", "grounded_heads: false", tensors={"hydra_mlp.0.0.linear.weight": torch.zeros(16, 16)}),
    Bad("hydra++", "another shape", tensors={f"{PREFIX}.self_attn.q_proj.weight": torch.zeros(16, 8)}),
    Bad("hydra++", "decoder layer", tensors={f"{PREFIX}.mlp.gate_proj.weight": torch.zeros(24, 8)}),
    Bad(
        "clover-2",
        "2 heads of 4 numbers do not make",
        tensors={"layers.0.self_attn.q_proj.weight": torch.zeros(8, 16)},
    ),
    Bad("arctic-lstm", "not four gates", tensors={"projs.0.weight": torch.zeros(41, 16)}),
    *(
        Bad("medusa-vllm-pruned", said, tensors={"token_map": torch.tensor(ids)})
        for ids, said in (
            ([0, 0, 1, 2], "different ids"),
            ([0, 1, 2], "different ids"),
            ([0, 1, 2, 9], "names id 9"),
        )
    ),
]
ENTRIES = [
    Bad("eagle", r"draft_vocab_size 47, and lm_head.weight has 48 rows", {"draft_vocab_size": 47}),
    Bad("eagle", "num_attention_heads", {"num_attention_heads": "many"}),
    Bad("eagle", "rms_norm_eps", {"rms_norm_eps": -1}),
    Bad("eagle", "rope_scaling", {"rope_scaling": 3}),
    Bad("eagle", "vocab_size", {"vocab_size": None}),
    Bad("p-eagle", r"no id mask_token_id \(or ptd_token_id, pard_token\)", {"mask_token_id": None}),
    Bad("falcon", "k_mask", {"k_mask": None}),
    Bad("falcon", r"blocks of one unit \(k_mask\)", {"k_mask": 1}),
    Bad("dflash", "block_size in its config is from 2", {"block_size": 1}),
    Bad("dflash", "no number block_size", {"block_size": None}),
    Bad("dflash", "no id mask_token_id", inner(mask_token_id=None)),
    Bad("dflash", "target_layer_ids are numbers", inner(target_layer_ids="all")),
    Bad("dflash", "not 5 equal heads", {"num_attention_heads": 5}),
    Bad("dspark", "gated", {"markov_head_type": "gatet"}),
    Bad("dspark", r"guess from a state of 64 numbers takes \[1, 64\]", {"confidence_head_with_markov": False}),
    Bad("speculators", r"draft_vocab_size 47, and lm_head.weight has 48 rows", {"draft_vocab_size": 47}),
    Bad("dflash-windows", "no number sliding_window", {"sliding_window": None}),
    Bad("medusa-vllm-pruned", "no part 3 of 4", {"num_heads": 4}),
    Bad("medusa-vllm-pruned", "logit_scale", {"logit_scale": "big"}),
    Bad("hydra", "earlier state", {"hidden_state_offset": 1}),
    Bad("hydra++", "not 5 equal heads", {"num_attention_heads": 5}),
    Bad("clover-2", "clover.: its config has no number num_heads", {"clover": {"num_layers": 1}}),
    Bad("clover-2", "clover.: its config has no number num_heads", {"clover": 5}),
    Bad("clover", "clover.: its config has no number num_heads", {"clover": {"num_layers": 1}}),
    Bad("clover", "has no number vocab_size", {"vocab_size": None}),
    Bad("clover", "num_heads 4, and its file has 3", {"clover": {"num_heads": 4}}),
    Bad("clover-2", "drafts 65 units .*the most is 64", {"clover": {"num_heads": 65}}),
    Bad("clover-2", "no part 1 of 2", {"clover": {"num_heads": 3, "num_layers": 2}}),
    Bad("clover-2", "not 5 equal heads", {"num_attention_heads": 5}),
    Bad("mlp-speculator", "no number n_predict", {"n_predict": 0}),
    Bad("mlp-speculator", "the most is 64", {"n_predict": 10**9}),
    Bad("arctic-lstm", "only 'sum_lstm' is computed", {"method": "sum_rnn"}),
]


@pytest.mark.parametrize(
    "bad", OF_ANOTHER_TARGET + OF_ANOTHER_KIND + NOT_WHOLE + ENTRIES, ids=lambda bad: f"{bad.head}: {bad.said}"
)
def test_what_is_wrong_is_said(bad: Bad, tmp_path: Path) -> None:
    of = HEADS[bad.head]
    folder = of.stored.save(tmp_path, changed=bad.config, **bad.tensors)
    with pytest.raises(ValueError, match=bad.said):
        Decoder(TransformersTarget(of.target(**bad.target)), of.drafter(str(folder), **bad.options))


@pytest.mark.parametrize("name", path_heads.KINDS)
def test_paths_of_another_target(name: str, tmp_path: Path) -> None:
    """Also files that lack everything, hold integers, or a last tensor of another shape."""
    layout, of = path_heads.LAYOUTS[name], HEADS[name]
    weights = layout.weights()
    key, value = next((key, value) for key, value in weights.items() if value.dim() > 1)
    for number, (said, changed) in enumerate(
        (
            ("states of 24 numbers, and those of the target have 16", {"hidden": 24}),
            ("made for 6 ids, and the target has 7", {"vocab": 6}),
            ("has no layout of .* is the nearest, and .* is missing. Its keys are .*some.weight",
             {**dict.fromkeys(weights), "some.weight": FOUR}),
            ("quantised", {key: value.to(torch.int8)}),
            ("of another shape|no matrix|token_map", {list(weights)[-1]: torch.zeros(3)}),
        )
    ):  # fmt: skip
        with pytest.raises(ValueError, match=said):
            drafter = of.drafter(str(layout.save(tmp_path / str(number), **changed)))
            Decoder(TransformersTarget(of.target()), drafter)


@pytest.mark.parametrize("name", ["eagle", "p-eagle", "dflash", "falcon", *path_heads.KINDS])
def test_targets_without_states_and_heads_that_are_no_folder(name: str, tmp_path: Path) -> None:
    of = HEADS[name]
    drafter = of.drafter(str(of.stored.save(tmp_path)), form="chain")
    with pytest.raises(ValueError, match="nothing offers hidden"):
        Decoder(MarkovTarget(torch.rand(7, 7, 7)), drafter)
    with pytest.raises(TypeError, match="a folder or a hub name"):
        of.drafter(3)
    with pytest.raises(ValueError, match="needs a head"):
        of.drafter(None)


@pytest.mark.parametrize("method", ["eagle", "p-eagle", "dflash", "falcon", "medusa", "ppd"])
def test_a_method_without_a_head(method: str) -> None:
    with pytest.raises(ValueError, match=f"{method} needs (a head|prompt tokens)"):
        mmspec.enable(llama(num_hidden_layers=6), method)


@pytest.mark.parametrize(
    ("name", "said"),
    [("eagle", "may be a head of another target"), ("p-eagle", ""), ("dflash", "(target_layer_ids)")],
)
def test_a_head_that_guesses_nothing_is_said_once(
    name: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warned: list[str] = []
    monkeypatch.setattr("mmspec_text.drafters.heads.trial.warn", warned.append)
    of = HEADS[name]
    drafter = of.drafter(str(of.stored.save(tmp_path)), form="chain")
    ours = Decoder(TransformersTarget(of.target()), drafter, k=2)
    prompt = torch.randint(3, VOCAB, (1, 40), generator=torch.Generator().manual_seed(2))
    for _ in range(2):
        ours.generate(prompt, 4, warp=Warp.sampling(temperature=0))
    assert len(warned) == 1 and said in warned[0] and "chat template" in warned[0]
    guesses = 16 if name == "dflash" else 38
    assert f"guesses of {guesses} tokens" in str(drafter.loaded)
