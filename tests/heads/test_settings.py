"""Settings of published heads: every entry of a config is read, refused or named; counts and copies are compared."""

import json
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from mmspec.core.decoder import Decoder
from mmspec.core.warp import Warp
from mmspec.hosts.target import TransformersTarget
from mmspec.testing import tiny_models
from mmspec_text.drafters.eagle import Eagle, EagleOptions
from mmspec_text.drafters.heads.dflash.checkpoint import read_dflash
from mmspec_text.drafters.heads.eagle.checkpoint import read_checkpoint
from mmspec_text.drafters.heads.entries import HARMLESS, OF_LAYERS
from mmspec_text.drafters.heads.mtp.checkpoint import read_checkpoint as read_mtp
from mmspec_text.drafters.heads.pathwise.drafter import PathOptions
from tests.heads.test_eagle_layouts import joined, written_out
from tests.heads.test_mtp_layouts import model_info_of
from tests.support import dflash_layouts, eagle_layouts, mtp_layouts, p_eagle_layouts
from tests.support.cached_heads import teacher_forced
from tests.support.eagle_layouts import FIRST, TARGET, VOCAB, Stored
from tests.support.path_heads import LAYOUTS as PATHS
from tests.text.conftest import llama

EAGLE, DFLASH = eagle_layouts.LAYOUTS, dflash_layouts.LAYOUTS
FULL, SLIDING = "full_attention", "sliding_attention"
FAMILIES: dict[str, tuple[Any, Callable[[str], Any]]] = {
    "eagle-1": (EAGLE["speculators-1"], read_checkpoint),
    "eagle-3": (
        replace(EAGLE["two-layers"], config={**EAGLE["two-layers"].config, "norm_output": False}),
        read_checkpoint,
    ),
    "p-eagle": (p_eagle_layouts.LAYOUTS["speculators"], lambda name: read_checkpoint(name, "p-eagle")),
    "dflash": (DFLASH["speculators"], read_dflash),
    "dspark": (DFLASH["dspark"], read_dflash),
    **{name: (PATHS[name], PATHS[name].read) for name in ("medusa", "hydra++", "clover", "clover-2", "mlp-speculator")},
}
OTHERS: dict[str, Any] = {
    "attention_multiplier": 0.5,
    "attn_logit_softcapping": 30.0,
    "embedding_multiplier": 12,
    "final_logit_softcapping": 30.0,
    "hidden_act": "gelu",
    "logit_scale": 0.25,
    "logits_scaling": 8,
    "partial_rotary_factor": 0.5,
    "query_pre_attn_scalar": 64,
    "residual_multiplier": 0.2,
    "rms_norm_eps": 0.5,
    "rope_interleave": True,
    "rope_theta": 123.0,
    "rope_scaling": {"rope_type": "linear", "factor": 2.0},
    "scale_depth": 1.4,
    "scale_emb": 12,
    "sliding_window": 3,
    "something_of_tomorrow": 7,
    "use_sliding_window": True,
}
"""Entries that a config may have beside its own."""


SHOWN = ("grounded_heads", "hydra_head_arch", "inner_dim")
"""Entries of which the tensors tell."""


def flipped(value: Any) -> Any:
    """Another value of the same type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 9
    return "odd" if isinstance(value, str) else value[::-1] if isinstance(value, list) else value


def places(config: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Where the entries of a config are."""
    found: list[tuple[str, ...]] = []
    for key, value in config.items():
        inner = places(value) if isinstance(value, Mapping) else []
        found += [(key, *place) for place in inner] or [(key,)]
    return found


def with_entry(config: Mapping[str, Any], place: tuple[str, ...], change: Callable[[Any], Any]) -> dict[str, Any]:
    first, *rest = place
    old = config.get(first)
    return {**config, first: with_entry(old or {}, tuple(rest), change) if rest else change(old)}


def seen(folder: Path, read: Callable[[str], Any]) -> tuple[Any, str]:
    """A head as it is read, and what is said of it: warnings, or the refusal."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            head = read(str(folder))
            facts = head.architecture, getattr(head, "layer_ids", None), head.length, getattr(head, "mask_token", None)
        except ValueError as error:
            return None, str(error)
    return facts, " ".join(str(each.message) for each in said)


@pytest.mark.parametrize("name", FAMILIES)
def test_no_entry_is_dropped_without_a_word(name: str, tmp_path: Path) -> None:
    """Each entry is flipped by itself: another head is read, or the entry is named; or it is one of a known list."""
    layout, read = FAMILIES[name]
    folder = layout.save(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    plain, said = seen(folder, read)
    assert plain is not None and "not read" not in said, said
    tried = [(place, with_entry(config, place, flipped)) for place in places(config)]
    tried += [((key,), {**config, key: value}) for key, value in OTHERS.items()]
    layers = "rms_norm_eps" in config or "transformer_layer_config" in config or name == "hydra++"
    harmless = {*HARMLESS, *SHOWN, *(() if layers else OF_LAYERS)}
    dropped = []
    for place, changed in tried:
        (folder / "config.json").write_text(json.dumps(changed))
        facts, said = seen(folder, read)
        known = place[-1] in harmless or (name == "clover-2" and place[-1] == "rope_theta")  # its class has a base
        if changed != config and facts == plain and place[-1] not in said and not known:
            dropped.append(place)
    assert not dropped


FACTORS = [1.0 + i / 8 for i in range(4)]
LENGTH = "original_max_position_embeddings"
ROTARY: dict[str, dict[str, Any]] = {
    "linear": {"rope_scaling": {"type": "linear", "factor": 3.0}},
    "dynamic": {"rope_scaling": {"type": "dynamic", "factor": 4.0}},
    "llama3": {
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 4.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            LENGTH: 8,
        }
    },
    "yarn-without-a-length": {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
    "yarn-beside-a-length": {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}, LENGTH: 10},
    "yarn": {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, LENGTH: 6, "beta_fast": 8, "truncate": False}},
    "longrope": {
        "rope_scaling": {"type": "su", "short_factor": FACTORS, "long_factor": [4 * f for f in FACTORS]},
        LENGTH: 8,
    },
    "by-layer": {
        "layer_types": [FULL, FULL],
        "rope_parameters": {
            FULL: {"rope_type": "default", "rope_theta": 777.0},
            SLIDING: {"rope_type": "default", "rope_theta": 3.0},
        },
    },
}
"""Rotary positions in all their forms, for heads of 8 numbers."""


@pytest.mark.parametrize("form", ROTARY)
@pytest.mark.parametrize("name", ["two-layers", "dflash"])
def test_rotary_positions_are_those_of_the_whole_config(name: str, form: str, tmp_path: Path) -> None:
    layout, read = (EAGLE[name], read_checkpoint) if name in EAGLE else (DFLASH[name], read_dflash)
    changed = {"rope_theta": 500.0, "max_position_embeddings": 24, **ROTARY[form]}
    network: Any = read(str(layout.save(tmp_path, changed=changed))).network(VOCAB)
    given = {
        key: value for key, value in json.loads((tmp_path / "config.json").read_text()).items() if key != "model_type"
    }
    given |= {"hidden_size": 24}  # which the class divides by the heads, and no table reads
    if form == "by-layer":
        given |= {"rope_parameters": given["rope_parameters"][FULL]}
    if form == "longrope":
        given |= {"rope_scaling": {**given["rope_scaling"], "rope_type": "longrope"}}
    wanted = LlamaRotaryEmbedding(LlamaConfig(**given))
    for length in (6, 20, 40):
        at = torch.arange(length)[None]
        pairs = zip(network._rotary[0](torch.zeros(1), at), wanted(torch.zeros(1), at), strict=True)
        assert all(torch.equal(ours, theirs) for ours, theirs in pairs)
    assert network.turns_by_length == (form == "dynamic")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "max_position_embeddings"),
        ({"rope_scaling": {"type": "linear"}}, "rotary positions .*factor"),
        ({"rope_scaling": {"type": "linaer", "factor": 2.0}}, "linaer.*did you mean 'linear'"),
        ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "partial_rotary_factor = 0.5"),
        (
            {
                "layer_types": [FULL, SLIDING],
                "use_sliding_window": True,
                "sliding_window": 4,
                "rope_parameters": {FULL: {"rope_theta": 5.0}, SLIDING: {"rope_theta": 6.0}},
            },
            "rope_parameters",
        ),
        ({"layer_types": [SLIDING], "use_sliding_window": True}, "layer_types .* 2 layers"),
        ({"num_hidden_layers": 3}, "num_hidden_layers 3, and its file has 2"),
        ({"attention_bias": True}, "attention_bias True, and its file has False"),
        ({"mlp_bias": True}, "mlp_bias True, and its file has False"),
        ({"num_key_value_heads": 3}, "num_key_value_heads 3, and its file has 1"),
    ],
)
@pytest.mark.parametrize("name", ["two-layers", "dflash"])
def test_what_is_refused_by_name(name: str, changed: dict[str, Any], said: str, tmp_path: Path) -> None:
    layout, read = (EAGLE[name], read_checkpoint) if name in EAGLE else (DFLASH[name], read_dflash)
    with pytest.raises(ValueError, match=f"the head .*{said}"):
        read(str(layout.save(tmp_path, changed=changed)))


def test_positions_of_pictures_are_named(tmp_path: Path) -> None:
    changed = {"rope_scaling": {"type": "mrope", "mrope_section": [1, 1, 2]}}
    with pytest.warns(UserWarning, match="rope_scaling .*not read: mrope_section"):
        head = read_checkpoint(str(EAGLE["eagle-3"].save(tmp_path, changed=changed)))
    assert head.architecture.rope["rope_type"] == "default"


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    return llama(num_hidden_layers=6)


def compared(stored: Stored, folder: Path, model: LlamaForCausalLM, change: Callable[[Any], None]) -> None:
    """The logits are those of the forward written out, after a change of it; and not those before."""
    network, reference = joined(folder, model), written_out(stored, model)
    g = torch.Generator().manual_seed(3)
    features, units = (
        torch.randn(1, 6, network.architecture.width, generator=g),
        torch.randint(VOCAB, (1, 6), generator=g),
    )
    with torch.no_grad():
        ours = teacher_forced(network, features, units)[0]
    ids = torch.isfinite(ours[0])

    def expected() -> Tensor:
        states = [reference.state(feature) for feature in features[0]]
        return torch.stack([reference.logits(u) for u in reference.fed_back(states, units[0].tolist())]).detach()

    before = expected()
    change(reference)
    after = expected()
    largest = float(after.abs().max())
    assert torch.allclose(ours[:, ids].double(), after, atol=1e-4 * largest)
    assert before.shape != after.shape or not torch.allclose(before, after, atol=1e-2 * largest)


@pytest.mark.parametrize(
    ("kinds", "windows", "more"),
    [
        ([FULL, SLIDING], [None, 2], {}),
        ([SLIDING, FULL, SLIDING], [2, None], {}),
        (None, [None, 2], {"use_sliding_window": True, "max_window_layers": 1}),
    ],
)
def test_every_layer_has_its_own_window(
    kinds: Any, windows: list[int | None], more: dict[str, Any], model: LlamaForCausalLM, tmp_path: Path
) -> None:
    stored = EAGLE["two-layers"]
    folder = stored.save(tmp_path, changed={"layer_types": kinds, "sliding_window": 2, **more})

    def change(reference: Any) -> None:
        layer = reference.layer

        def one(number: int, *args: Any) -> Any:
            reference.f = replace(reference.f, window=windows[number])
            return layer(number, *args)

        reference.layer = one

    compared(stored, folder, model, change)
    user = Eagle(EagleOptions(model=str(folder), form="chain", window=3))
    Decoder(TransformersTarget(model), user, k=2)
    assert user.network.wide == frozenset()  # a user's window is one of all layers


def test_windows_that_are_switched_off(tmp_path: Path) -> None:
    off = {"layer_types": [SLIDING, SLIDING], "sliding_window": 2, "use_sliding_window": False}
    assert read_checkpoint(str(EAGLE["two-layers"].save(tmp_path / "a", changed=off))).architecture.window is None
    sights = read_dflash(str(DFLASH["dflash"].save(tmp_path / "b", changed=off))).architecture.sights
    assert {sight.window for sight in sights} == {None}
    longer = {"layer_types": [FULL, SLIDING], "sliding_window": 2}  # of a list for more layers than the head has
    assert read_checkpoint(str(EAGLE["eagle-3"].save(tmp_path / "c", changed=longer))).architecture.window is None


@pytest.mark.parametrize("name", ["two-layers", "dflash"])
def test_windows_of_qwens_configs_are_off_until_they_are_switched_on(name: str, tmp_path: Path) -> None:
    """`use_sliding_window` is false where Qwen's own class finds no such entry."""
    layout, read = (EAGLE[name], read_checkpoint) if name in EAGLE else (DFLASH[name], read_dflash)
    for kind, switch, windows in (("qwen3", None, {None}), ("qwen3", True, {None, 2}), ("llama", None, {None, 2})):
        changed = {
            "layer_types": [FULL, SLIDING],
            "sliding_window": 2,
            "model_type": kind,
            "use_sliding_window": switch,
        }
        a: Any = read(str(layout.save(tmp_path / f"{kind} {switch}", changed=changed))).architecture
        found = {None, a.window} if name in EAGLE else {sight.window for sight in a.sights}
        assert found == windows


def test_the_older_name_of_rotary_parameters_wins(tmp_path: Path) -> None:
    """As in transformers, where both are there; the other one is named."""
    both = {"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": {"rope_type": "yarn", "factor": 4.0}}
    with pytest.warns(UserWarning, match="not read.*rope_parameters"):
        head = read_checkpoint(str(EAGLE["eagle-3"].save(tmp_path, changed=both)))
    assert head.architecture.rope["rope_type"] == "linear"


@pytest.mark.parametrize(
    ("name", "changed", "said"),
    [
        ("hydra", {"grounded_heads": False}, "grounded_heads False, and its file has True"),
        ("hydra++", {"hydra_head_arch": "mlp"}, "hydra_head_arch 'mlp', and its file has prefix-mlp"),
        ("medusa-vllm", {"medusa_fc_bias": True}, "medusa_fc_bias True, and its file has False"),
        ("mlp-speculator", {"n_predict": 2}, "n_predict 2, and its file has 3"),
        ("mlp-speculator", {"inner_dim": 11}, "inner_dim 11, and its file has 10"),
        ("arctic-lstm", {"proj_dim": "12"}, "proj_dim 12, and its file has 10"),
        ("clover-2", {"attention_bias": True}, "attention_bias True, and its file has False"),
    ],
)
def test_what_other_heads_say_of_their_tensors(name: str, changed: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"the head .*{said}"):
        PATHS[name].read(str(PATHS[name].save(tmp_path, changed=changed)))


def test_the_factor_of_logits(model: LlamaForCausalLM, tmp_path: Path) -> None:
    def change(reference: Any) -> None:
        reference.output = reference.output * 0.25

    compared(EAGLE["eagle-3"], EAGLE["eagle-3"].save(tmp_path, changed={"logit_scale": 0.25}), model, change)


def test_an_output_layer_that_is_the_embedding(model: LlamaForCausalLM, tmp_path: Path) -> None:
    stored = EAGLE["eagle-1"]

    def change(reference: Any) -> None:
        reference.output = reference.embedding

    compared(stored, stored.save(tmp_path / "a", changed={"tie_word_embeddings": True}), model, change)
    layout = DFLASH["dflash"]
    own: dict[str, Any] = {"embed_tokens.weight": torch.randn(VOCAB, TARGET)}
    network: Any = read_dflash(str(layout.save(tmp_path / "b", changed={"tie_word_embeddings": True}, **own))).network(
        VOCAB
    )
    assert torch.equal(network.lm_head.weight, own["embed_tokens.weight"])


def test_the_first_norm_of_eagle_1(model: LlamaForCausalLM, tmp_path: Path) -> None:
    """Its class has none in the first layer; what a file carries there is left."""
    stored = replace(EAGLE["eagle-1-without-bias"], shapes=FIRST)
    norm: dict[str, Any] = {"layers.0.input_layernorm.weight": torch.full((TARGET,), 5.0)}
    folder = stored.save(tmp_path, **norm)
    head = read_checkpoint(str(folder))
    assert head.ignored == ("layers.0.input_layernorm.weight",)
    assert "layers.0.input_layernorm.weight" not in head.network(VOCAB).state_dict()


def test_scales_of_a_quantised_cache_are_left(tmp_path: Path) -> None:
    scales: dict[str, Any] = {
        f"layers.0.self_attn.{part}_scale": torch.ones(1) for part in ("k", "v", "k_proj.k", "v_proj.v")
    }
    head = read_checkpoint(str(EAGLE["eagle-3"].save(tmp_path, **scales)))
    assert len(head.ignored) == 4


def test_a_narrow_head_without_an_output_layer(tmp_path: Path) -> None:
    stored = replace(EAGLE["speculators"], pruned=False)
    none: dict[str, Any] = {"lm_head.weight": None}
    folder = stored.save(tmp_path, changed={"draft_vocab_size": VOCAB}, **none)
    with pytest.raises(ValueError, match=f"states of 24 numbers and no lm_head.weight, .* reads {TARGET}"):
        read_checkpoint(str(folder)).network(VOCAB)


def test_keys_are_named_as_the_file_has_them(tmp_path: Path) -> None:
    stored = replace(EAGLE["eagle-3"], shapes={"0.odd.weight": (4, 4)}, pruned=False, rename="medusa_heads.{}".format)
    with pytest.raises(ValueError, match=r"Its keys are medusa_heads\.0\.odd"):
        PATHS["medusa"].read(str(stored.save(tmp_path)))


@pytest.mark.parametrize("normed", [True, False])
def test_what_is_said_of_the_state_fed_back(normed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A head that says `norm_output: false`, and was trained with the state normalised: the better way is kept."""
    said: list[str] = []
    folder = EAGLE["modelopt"].save(tmp_path, changed={"norm_output": False})
    head = Eagle(EagleOptions(model=str(folder), form="chain"))

    def agreement(logits: Tensor, scores: Tensor) -> float:
        return 0.6 if head.network.feeds_normed == normed else 0.2

    monkeypatch.setattr("mmspec_text.drafters.heads.trial.warn", said.append)
    monkeypatch.setattr("mmspec_text.drafters.heads.trial._agreement", agreement)
    decoder = Decoder(TransformersTarget(llama(num_hidden_layers=6)), head, k=2)
    decoder.generate(torch.full((1, 40), 9), 3, warp=Warp.sampling(temperature=0))
    assert head.network.feeds_normed == normed
    assert len(said) == normed and all("norm_output False" in text and "back normalised" in text for text in said)


@pytest.mark.parametrize("part", ["shared_head.head", "embed_tokens"])
def test_a_copy_of_the_targets_weights_that_is_none(part: str, tmp_path: Path) -> None:
    stored = mtp_layouts.LAYOUTS["deepseek"]
    model = stored.loaded(stored.save(tmp_path / "a"))
    key = f"model.layers.{stored.layers}.{part}.weight"
    own: dict[str, Any] = {key: stored.keys()[key] + 1}
    with pytest.raises(ValueError, match=f"{part}.weight is unlike .*(lm_head|embed_tokens).weight"):
        read_mtp(str(stored.save(tmp_path / "b", **own)), model_info_of(model))
    alone: dict[str, Any] = {"lm_head.weight": None, "model.embed_tokens.weight": None}
    with pytest.warns(UserWarning, match=f"{part}.weight, and no .* to compare it with"):
        read_mtp(str(stored.save(tmp_path / "c", **alone)), model_info_of(model))


@pytest.mark.parametrize("said", [0, 1])
def test_fewer_depths_than_the_checkpoint_has(said: int, tmp_path: Path) -> None:
    stored = mtp_layouts.LAYOUTS["deepseek-two"]
    model = stored.loaded(stored.save(tmp_path / "a"))
    folder = stored.save(tmp_path / "b", changed={"num_nextn_predict_layers": said})
    with pytest.raises(ValueError, match=rf"says {said} .*\(num_nextn_predict_layers\), and its files have 2"):
        read_mtp(str(folder), model_info_of(model))


@pytest.mark.parametrize(
    ("name", "key"),
    [("clover-2", "lm_head.weight"), ("hydra", "input_embed_fn.weight"), ("medusa-2", "model.embed_tokens.weight")],
)
def test_a_copy_beside_a_head_that_is_none(name: str, key: str, tmp_path: Path) -> None:
    """It is compared with the target's when the head is bound; in the dtype of either."""
    model, layout = tiny_models.llama(), PATHS[name]
    theirs = (model.lm_head if "lm_head" in key else model.model.embed_tokens).weight.detach()
    for number, same in enumerate((theirs.clone(), theirs.bfloat16())):
        folder = layout.save(tmp_path / str(number), **{key: same})
        Decoder(TransformersTarget(model), layout.drafter(PathOptions(model=str(folder), form="chain")), k=2)
    folder = layout.save(tmp_path / "other", **{key: theirs + 0.5})
    drafter = layout.drafter(PathOptions(model=str(folder), form="chain"))
    with pytest.raises(ValueError, match=f"{key} is unlike the target's"):
        Decoder(TransformersTarget(model), drafter, k=2)


def test_a_list_of_ids_and_rows_that_do_not_fit(tmp_path: Path) -> None:
    folder = PATHS["medusa-vllm-pruned"].save(tmp_path, changed={"truncated_vocab_size": None})
    with pytest.raises(ValueError, match="scores 4 ids by its token_map, and 7 of 7 by truncated_vocab_size"):
        PATHS["medusa"].read(str(folder))
