"""Masks, gated LoRA and sampler: what they draft round after round, equality with plain decoding, bad input.

The forward to compare with: the model as it is reads the known units into a cache of transformers; a copy with the LoRA
merged into its weights reads the masks behind them; the sampler is written out.
"""

import copy
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

import mmspec
from mmspec.core.decoder import Decoder
from mmspec.core.rules import Block, Match, RecursiveRejection, Rejection, Rule
from mmspec.core.types import Draft
from mmspec.hosts.target import TransformersTarget
from mmspec.testing.statistics import LEVEL
from mmspec.testing.tiny_models import llama
from mmspec_text.drafters.apple_mtp import AppleMTP, AppleMTPOptions
from mmspec_text.drafters.heads.apple.checkpoint import AppleCheckpoint, read_apple
from mmspec_text.drafters.heads.probes import ProbedTarget, Probing, _probing
from tests.heads.conftest import GREEDY, SAMPLED
from tests.support.draft_rounds import ROUNDS, Budgets, assert_distributions, assert_dynamic_tree, played
from tests.support.eagle_forward import silu
from tests.support.examples.zoo import random_masks
from tests.support.head_equality import assert_equal_to_transformers
from tests.support.zoo import build

MASKS = random_masks()
FORMS: list[dict[str, Any]] = [{"form": "chain"}, {"form": "rerank", "width": 3, "nodes": 6}]
ZOO = {
    "llama": "model.layers.0.self_attn.v_proj",
    "gemma2": "model.layers.1.mlp.down_proj",
    "qwen3_moe": "model.layers.0.self_attn.o_proj",
    "mistral": "model.layers.2.self_attn.k_proj",
    "phi3": "model.layers.0.self_attn.qkv_proj",
}
"""Architectures, and a layer of each that has a LoRA."""


def decoder(rule: Rule | None = None, k: int = 3, **options: Any) -> Decoder:
    drafter = AppleMTP(AppleMTPOptions(model=MASKS, **options))
    return Decoder(TransformersTarget(llama()), drafter, rule or Match(), k=k)


@cache
def merged() -> Any:
    """The target with the LoRA in its weights."""
    model = copy.deepcopy(llama())
    for name in MASKS.down:
        layer = model.get_submodule(name)
        layer.weight.data += MASKS.scale * MASKS.up[name] @ MASKS.down[name]
    return model


@cache
def states(known: tuple[int, ...]) -> Tensor:
    """What the output layer would read of the masks behind the last unit before the root: `[mask, hidden]`."""
    with torch.no_grad():
        earlier = llama()(input_ids=torch.tensor([known[:-1]]), use_cache=True).past_key_values
        found = merged().model(inputs_embeds=MASKS.masks[None], past_key_values=earlier, use_cache=True)
    return found.last_hidden_state[0].double()


def scores(known: tuple[int, ...], path: list[int]) -> Tensor:
    """Log probabilities behind a path of drafted units: `[vocab]`."""
    before = path[-1] if path else known[-1]
    weights = {key: value.double() for key, value in MASKS.sampler.items()}
    state = torch.cat([llama().model.embed_tokens.weight[before].double(), states(known)[len(path)]])
    for i in range(2):
        state = silu(weights[f"linear.{i}.weight"] @ state + weights[f"linear.{i}.bias"])
        state = (state - state.mean()) / torch.sqrt(state.var(correction=0) + 1e-5)
        state = state * weights[f"norm.{i}.weight"] + weights[f"norm.{i}.bias"]
    return (llama().lm_head.weight.detach().double() @ state.detach()).log_softmax(-1)


def expected(known: Tensor, path: list[int]) -> Tensor:
    return torch.stack([scores(tuple(known.tolist()), path[:length]) for length in range(len(path) + 1)])


@pytest.mark.parametrize(
    ("form", "rule"),
    [({"form": "chain"}, Rejection), ({"form": "branching", "branching": (2, 2, 1)}, RecursiveRejection)],
)
def test_distributions_of_successive_rounds(form: dict[str, Any], rule: type, rows: dict[str, Tensor]) -> None:
    """A ragged batch, after rounds that accepted nothing and a part; only the first round has no draft."""
    recorded, accepted = played(decoder(rule(), **form), rows, SAMPLED)
    assert [draft.units.shape[1] > 0 for _, _, draft in recorded] == [False] + [True] * (ROUNDS - 1)
    assert {0} < set(accepted), "no round accepted a part, so nothing was tested"
    assert assert_distributions(recorded, expected) > 30


def test_the_dynamic_tree_of_successive_rounds(rows: dict[str, Tensor]) -> None:
    """Greedy: every node's score is the log probability of its path."""
    recorded, accepted = played(decoder(Match(), form="rerank", width=3, nodes=6), rows, GREEDY)
    assert 0 in accepted and max(accepted) > 0, "no round accepted a part, so nothing was tested"
    assert_dynamic_tree(recorded[1:], expected, 6)


def test_rounds_without_a_draft(rows: dict[str, Tensor]) -> None:
    """A pass over the root alone carries masks, too."""
    ours = decoder(Rejection(), k=4, form="chain")
    ours.policy = Budgets()
    recorded, _ = played(ours, rows, SAMPLED, rounds=6)
    assert [draft.units.shape[1] for _, _, draft in recorded] == [0, 3, 3]  # of 2, 4 and 3; there are three masks
    assert assert_distributions(recorded, expected) > 0


def test_the_gate(rows: dict[str, Tensor]) -> None:
    """Nodes have the same scores with the LoRA and without it."""
    plain = TransformersTarget(llama())
    found = []
    for target in (plain, AppleMTP(AppleMTPOptions(model=MASKS, form="chain")).wrap(plain)):
        started = target.start(rows, 8, 5)
        root = started.output.logits[:, 0].argmax(-1)  # type: ignore[index]
        units = torch.tensor([[1, 2, 3, 4]]).expand(3, -1)
        draft = Draft.tree(units, [-1, -1, 0, 2]).rooted(root, torch.tensor([9, 9, 1]))
        output = target.verify(started.cache, draft)
        assert output.logits is not None
        found.append(output.logits[draft.valid])
    assert torch.allclose(*found, atol=1e-4)


@pytest.mark.thinned
@pytest.mark.compiled
@pytest.mark.parametrize("form", FORMS, ids=lambda form: form["form"])
@pytest.mark.parametrize("warp", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("batch", [1, 3])
def test_equal_to_plain(batch: int, warp: Any, form: dict[str, Any], rows: dict[str, Tensor]) -> None:
    rows = {key: value[:batch] for key, value in rows.items()}
    plain = Decoder(TransformersTarget(llama()), None, Match(), k=0).generate(rows, 30, seed=5, warp=warp)
    ours = decoder(Match(), **form).generate(rows, 30, seed=5, warp=warp)
    assert all(torch.equal(a, b) for a, b in zip(ours.units, plain.units, strict=True))
    assert ours.report.drafted > 0 and (batch == 1 or ours.report.accepted > 0), "so nothing was tested"


def saved(folder: Path, stored: AppleCheckpoint, leave: str = "", **changed: Any) -> Path:
    """An adapter; `leave` is the end of a key that is left out."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {"mask_embeddings": stored.masks, **{f"sampler.{key}": value for key, value in stored.sampler.items()}}
    for name in stored.down:
        tensors[f"base_model.model.{name}.lora_A.weight"] = stored.down[name]
        tensors[f"base_model.model.{name}.lora_B.weight"] = stored.up[name]
    kept = {key: value.clone() for key, value in tensors.items() if not leave or not key.endswith(leave)}
    save_file(kept, folder / "adapter_model.safetensors")
    rank = len(next(iter(stored.down.values())))
    (folder / "adapter_config.json").write_text(json.dumps({"r": rank, "lora_alpha": stored.scale * rank, **changed}))
    return folder


def test_files(tmp_path: Path) -> None:
    read = read_apple(str(saved(tmp_path / "a", MASKS)))
    assert read.scale == MASKS.scale and torch.equal(read.masks, MASKS.masks)
    assert all(torch.equal(read.up[name], MASKS.up[name]) for name in MASKS.up) and set(read.sampler) == set(
        MASKS.sampler
    )
    for leave, said in (("mask_embeddings", "no matrix mask_embeddings"), ("up_proj.lora_B.weight", "only one of")):
        with pytest.raises(ValueError, match=said):
            read_apple(str(saved(tmp_path / "b", MASKS, leave)))
    with pytest.raises(ValueError, match=r"keys missing \(linear.1.bias"):
        read_apple(str(saved(tmp_path / "c", MASKS, "linear.1.bias"))).head(7)
    for changed, said in (({"r": None}, "no number r"), ({"r": 3}, "r in its config is 3")):
        with pytest.raises(ValueError, match=said):
            read_apple(str(saved(tmp_path / "d", MASKS, **changed)))
    with pytest.raises(ValueError, match="apple-mtp needs masks"):
        mmspec.enable(llama(), "apple-mtp")


def for_model(model: Any, name: str, seed: int = 0) -> AppleCheckpoint:
    """Random masks for a model, with a LoRA over one of its layers."""
    g = torch.Generator().manual_seed(seed)
    layer, width = model.get_submodule(name), model.get_input_embeddings().weight.shape[1]
    down, up = (torch.randn(shape, generator=g) for shape in ((2, layer.in_features), (layer.out_features, 2)))
    shapes = {f"linear.{i}.weight": (width, (2 - i) * width) for i in range(2)}
    sampler = {key: torch.randn(shape, generator=g) / shape[1] ** 0.5 for key, shape in shapes.items()}
    for i in range(2):
        sampler |= {f"linear.{i}.bias": torch.zeros(width), f"norm.{i}.bias": torch.zeros(width)}
        sampler[f"norm.{i}.weight"] = torch.ones(width)
    return AppleCheckpoint("random", torch.randn(3, width, generator=g) * 0.02, {name: down}, {name: up}, 0.5, sampler)


def test_targets_that_do_not_fit() -> None:
    model = build("llama")
    with pytest.raises(ValueError, match="the masks of 'random' have 16 numbers, the target's embeddings 64"):
        Decoder(TransformersTarget(model), AppleMTP(AppleMTPOptions(model=MASKS)))
    fits = for_model(model, ZOO["llama"])
    for name in ("model.layers.99.self_attn.v_proj", "model.layers.0"):
        down, up = (dict.fromkeys([name], *part.values()) for part in (fits.down, fits.up))
        other = AppleCheckpoint("random", fits.masks, down, up, 1.0, {})
        with pytest.raises(ValueError, match=rf"layer {name} of shape .* has no linear layer there"):
            Decoder(TransformersTarget(model), AppleMTP(AppleMTPOptions(model=other)))


def test_layers_that_see_units_in_another_order() -> None:
    """The hook says so; only a model's own forward shows what its layers are given."""
    model = build("llama")
    lora, layer = for_model(model, ZOO["llama"]).lora(model), model.get_submodule(ZOO["llama"])
    target = ProbedTarget(TransformersTarget(model), MASKS.masks, lora)
    cache = target.start(torch.tensor([[5, 6]]), 4, 2).cache
    with (
        target.ready(cache, 2),
        _probing.holding(Probing(target, 2)),
        pytest.raises(ValueError, match="in their order"),
    ):
        layer(torch.zeros(5, layer.in_features))
    with target.ready(cache, 2):
        layer(torch.zeros(5, layer.in_features))  # nobody's pass


@pytest.mark.slow
@pytest.mark.compiled
@pytest.mark.parametrize("form", FORMS, ids=lambda form: form["form"])
@pytest.mark.parametrize("architecture", ZOO)
def test_equal_to_transformers(architecture: str, form: dict[str, Any], prompts: Callable, tmp_path: Path) -> None:
    model = build(architecture)
    folder = saved(tmp_path, for_model(model, ZOO[architecture]))
    live = AppleMTP(AppleMTPOptions(model=str(folder), **form))
    named = {"method": "apple-mtp", "drafter": str(folder), **form}
    assert_equal_to_transformers(model, prompts, named, {"drafter": live})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "form"),
    [
        (Rejection, {"form": "chain"}),
        (Block, {"form": "chain"}),
        (RecursiveRejection, {"form": "branching", "branching": (2, 2)}),
    ],
)
def test_the_law_of_rules_that_use_q(rule: type, form: dict[str, Any], law: Callable) -> None:
    """Of four tokens: the first round has no draft, and the last token is never drafted."""
    assert law(decoder(rule(), k=2, **form), 4) > LEVEL
