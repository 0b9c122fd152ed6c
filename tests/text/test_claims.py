"""Configs that claim what their files do not hold, files that hold what no config says, and good ones."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import mmspec
from mmspec.hosts import loading
from mmspec.hosts.loading import fetched, load_model
from mmspec.hosts.outline import outline
from mmspec.hosts.weight_files import StoredTensor, refuse_mismatch, stored_tensors, unexpected_keys

WEIGHTS = "model.safetensors"
UP = "model.layers.1.mlp.up_proj.weight"


@pytest.fixture
def saved(target: Any, tmp_path: Path) -> Path:
    target.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def says(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))


def holds(folder: Path, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> None:
    save_file(change(load_file(folder / WEIGHTS)), folder / WEIGHTS, metadata={"format": "pt"})


CLAIMS: dict[str, tuple[dict[str, Any], str]] = {
    "layers": ({"num_hidden_layers": 10**7}, "num_hidden_layers = 10000000, and its files hold 21 tensors"),
    "layers of a part": ({"text_config": {"n_layers": 10**7}}, "n_layers = 10000000, and its files hold 21 tensors"),
    "layers without end": ({"num_hidden_layers": 10**18}, "num_hidden_layers = 1000000000000000000"),
    "layers by a float": ({"num_hidden_layers": 1e300}, r"num_hidden_layers = 1e\+300"),
    "width": ({"hidden_size": 10**6}, "asks for .* weights and .* other numbers, and its files hold"),
    "absurd width": ({"hidden_size": 10**12}, "cannot be loaded|asks for"),
    "vocabulary": ({"vocab_size": 10**9}, "asks for .* weights"),
    "no heads": ({"num_attention_heads": 0}, "cannot be loaded: "),
    "text for a number": ({"hidden_size": "sixty"}, "cannot be loaded: "),
    "fewer layers": ({"num_hidden_layers": 1}, r"9 keys unexpected .model\.layers\.1\.input_layernorm\.weight, "),
    "more layers": ({"num_hidden_layers": 3}, r"keys missing .model\.layers\.2\."),
    "a kernel": ({"attn_implementation": "someone/kernel"}, "leads elsewhere: attn_implementation = 'someone/kernel'"),
    "other weights": ({"transformers_weights": "../x.safetensors"}, "leads elsewhere: transformers_weights"),
    "an escape": ({"\x1b[2J_layers": 10**7}, r"says \\x1b\[2J_layers = 10000000"),
}


@pytest.mark.parametrize("claim", CLAIMS)
def test_a_claim_is_refused(claim: str, saved: Path) -> None:
    changes, said = CLAIMS[claim]
    says(saved, **changes)
    with pytest.raises(ValueError, match=said) as error:
        load_model(str(saved))
    assert str(error.value).isprintable()


@pytest.mark.parametrize("layers", [10**7, 10**18])
def test_an_outline_is_not_built_of_ten_million_layers(saved: Path, layers: int) -> None:
    says(saved, num_hidden_layers=layers)
    with pytest.raises(ValueError, match=f"num_hidden_layers = {layers}; 1000 is the most without weights"):
        outline(str(saved))


@pytest.mark.parametrize(
    "text",
    ["[" * 200_000, '{"a":' * 100_000, "[]", "7", "", "\x00\x01", '{"model_type": 7}', '{"num_hidden_layers": {}}'],
    ids=str.__len__,
)
def test_a_config_that_is_none(saved: Path, text: str) -> None:
    (saved / "config.json").write_text(text)
    for load in (load_model, outline):
        with pytest.raises(ValueError) as error:
            load(str(saved))
        assert str(error.value).isprintable() and len(str(error.value)) < 900


HELD: dict[str, tuple[Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]], str]] = {
    "a stranger": (lambda w: {**w, "odd.weight": torch.zeros(2)}, "1 keys unexpected .odd.weight."),
    "an escape": (lambda w: {**w, "\x1b[31m\n": torch.zeros(2)}, r"1 keys unexpected .\\x1b\[31m"),
    "integers": (lambda w: {**w, UP: w[UP].mul(9).to(torch.int8)}, rf"are integers .*: {UP} is I8"),
    "truth values": (lambda w: {**w, UP: w[UP] > 0}, rf"are integers .*: {UP} is BOOL"),
    "nothing": (lambda w: {"x": torch.zeros(1)}, "21 keys missing .* 1 keys unexpected"),
}


@pytest.mark.parametrize("held", HELD)
def test_what_the_config_does_not_say_is_refused(held: str, saved: Path) -> None:
    change, said = HELD[held]
    holds(saved, change)
    with pytest.raises(ValueError, match=said) as error:
        load_model(str(saved))
    assert str(error.value).isprintable()


def test_an_adapter_leads_to_another_model(saved: Path) -> None:
    (saved / "adapter_config.json").write_text('{"base_model_name_or_path": "/somewhere/else"}')
    with pytest.raises(ValueError, match=r"holds an adapter .* load the base model yourself"):
        load_model(str(saved))


@pytest.mark.parametrize("name", ["../model.safetensors", "/etc/passwd", "model.bin", "sub/x.safetensors", 7, None])
def test_an_index_of_shards_stays_in_its_folder(saved: Path, name: Any) -> None:
    (saved / WEIGHTS).rename(saved / "x.safetensors")
    (saved / f"{WEIGHTS}.index.json").write_text(json.dumps({"weight_map": {UP: name}}))
    with pytest.raises(ValueError, match=r"no safetensors file of its folder|has no weight_map"):
        load_model(str(saved))


def same(folder: Path, target: Any, given: Any) -> bool:
    with torch.no_grad():
        return torch.equal(load_model(str(folder))(**given).logits, target(**given).logits)


def test_what_published_files_have_beside_their_weights_is_no_misfit(
    saved: Path, target: Any, prompts: Callable, make_llama: Callable, tmp_path: Path
) -> None:
    holds(saved, lambda w: {**w, "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)})
    assert same(saved, target, prompts(2)), "frequencies of old files"
    tied = make_llama(tie_word_embeddings=True)
    tied.save_pretrained(tmp_path / "tied")
    holds(tmp_path / "tied", lambda w: {**w, "lm_head.weight": w["model.embed_tokens.weight"].clone()})
    assert same(tmp_path / "tied", tied, prompts(2)), "a head that is the embedding once more"
    target.save_pretrained(tmp_path / "shards", max_shard_size="50KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 2
    assert len(stored_tensors(tmp_path / "shards")) == 21 and same(tmp_path / "shards", target, prompts(2))


def test_old_masks_of_truth_values_are_no_integer_weights(tmp_path: Path) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=16, n_head=2, vocab_size=60, n_positions=32)).eval()
    model.save_pretrained(tmp_path)
    masks = {f"transformer.h.{i}.attn.bias": torch.ones(1, 1, 32, 32, dtype=torch.uint8) for i in range(2)}
    holds(tmp_path, lambda w: {**w, **masks, "transformer.h.0.attn.masked_bias": torch.tensor(-1e4)})
    assert same(tmp_path, model, {"input_ids": torch.arange(9)[None]})


def test_integers_are_weights_by_their_names_in_parts_that_are_not_loaded(target: Any) -> None:
    """Of a part for pictures only names are known: a table of positions is no weight, and a weight is one."""
    held = {name: StoredTensor("F32", tuple(weights.shape)) for name, weights in target.named_parameters()}
    table, weight = (StoredTensor("I64", (4,)) for _ in range(2))
    both = {"vision_config": {}}
    refuse_mismatch(target, both, {**held, "eyes.layer.relative_position_index": table}, "it")
    for config, key in ((both, "eyes.layer.weight"), (both, "model.layers.index"), ({}, "eyes.layer.index")):
        with pytest.raises(ValueError, match=f"are integers and its config has no quantization_config: {key} is I64"):
            refuse_mismatch(target, config, {**held, key: weight}, "it")


def test_integers_of_a_quantised_file_are_meant(target: Any) -> None:
    said = {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}}
    packed = {name: StoredTensor("U8", (weights.numel() // 2, 1)) for name, weights in target.named_parameters()}
    with torch.device("meta"):
        model = type(target)(target.config)
    refuse_mismatch(model, said, packed, "it")
    for other in ({}, {"quantization_config": {}}, {"quantization_config": {"quant_method": "made-up"}}):
        with pytest.raises(ValueError, match="are integers and its config has no quantization_config"):
            refuse_mismatch(model, other, packed, "it")


def test_the_text_half_of_a_model_that_sees_is_no_misfit_and_a_dropped_layer_of_it_is(target: Any) -> None:
    eyes, layer = "vision_model.layers.0.weight", "model.layers.7.mlp.up_proj.weight"
    assert unexpected_keys(target, [eyes, layer], {"vision_config": {}, "text_config": {}}, {}) == [layer]
    assert unexpected_keys(target, [eyes, layer], {"text_config": {}}, {}) == [eyes, layer]


def test_a_drafter_that_is_not_whole_is_refused_by_enable(target: Any, saved: Path) -> None:
    says(saved, num_hidden_layers=1)
    with pytest.raises(ValueError, match="keys unexpected"):
        mmspec.enable(target, drafter=str(saved))


def test_files_of_a_hub_name_are_checked_like_those_of_a_folder(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def cached(name: str, file: str, **how: Any) -> str | None:
        asked.append(file)
        return str(saved / file) if (saved / file).is_file() else None

    monkeypatch.setattr(loading, "cached_file", cached)
    assert fetched("someone/model") == saved and WEIGHTS in asked and not [f for f in asked if f.endswith(".py")]
    (saved / WEIGHTS).rename(saved / "pytorch_model.bin")
    with pytest.raises(ValueError, match="the model 'someone/model' has no safetensors"):
        fetched("someone/model")


@pytest.fixture(autouse=True)
def no_memory_for_giants(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """None of these may get as far as weights of its own: on the device `meta` only."""
    made = torch.nn.Linear.__init__

    def bounded(self: Any, enters: int, leaves: int, *args: Any, **how: Any) -> None:
        made(self, enters, leaves, *args, **how)
        assert self.weight.is_meta or self.weight.numel() < 10**7

    monkeypatch.setattr(torch.nn.Linear, "__init__", bounded)
    yield
