"""A checkpoint is taken whole or refused: a tensor that nothing reads, and a config of another family."""

from pathlib import Path
from typing import Any

import pytest
import torch

from mmspec_text.drafters.heads.dflash.checkpoint import read_dflash
from mmspec_text.drafters.heads.eagle.checkpoint import read_checkpoint
from mmspec_text.drafters.heads.mtp.checkpoint import read_checkpoint as read_mtp
from tests.heads.test_mtp_layouts import model_info_of
from tests.support import dflash_layouts, eagle_layouts, mtp_layouts
from tests.support.path_heads import LAYOUTS as PATHS

EAGLE, DFLASH = eagle_layouts.LAYOUTS, dflash_layouts.LAYOUTS


@pytest.mark.parametrize("name", EAGLE)
def test_a_tensor_that_no_eagle_head_has(name: str, tmp_path: Path) -> None:
    folder = EAGLE[name].save(tmp_path, **{"layers.0.odd.weight": torch.ones(3)})
    with pytest.raises(ValueError, match=r"not read whole as an EAGLE head.*1 keys that nothing reads .*odd.weight"):
        read_checkpoint(str(folder))


@pytest.mark.parametrize("name", DFLASH)
def test_a_tensor_that_no_dflash_head_has(name: str, tmp_path: Path) -> None:
    folder = DFLASH[name].save(tmp_path, **{"layers.1.odd.bias": torch.ones(3)})
    with pytest.raises(ValueError, match=r"not read whole as a DFlash head.*1 keys that nothing reads .*odd.bias"):
        read_dflash(str(folder))


@pytest.mark.parametrize("name", PATHS)
def test_a_tensor_that_no_head_along_paths_has(name: str, tmp_path: Path) -> None:
    layout = PATHS[name]
    begin = next((key.partition(".")[0] + "." for key in layout.weights() if key.startswith(("medusa_", "spec"))), "")
    folder = layout.save(tmp_path, **{f"{begin}odd.weight": torch.ones(3)})
    with pytest.raises(ValueError, match=r"not read whole as an? \w.*1 keys that nothing reads .*odd.weight"):
        layout.read(str(folder))


@pytest.mark.parametrize("name", ["qwen3.5", "glm", "mimo-v2", "ernie"])
def test_a_tensor_that_no_multi_token_layer_has(name: str, tmp_path: Path) -> None:
    stored = mtp_layouts.LAYOUTS[name]
    model = stored.loaded(stored.save(tmp_path / "a"))
    layers = len(model_info_of(model).language.layers)
    beside = f"model.layers.{layers + 5}.odd" if name == "glm" else "model.mtp.odd" if name != "qwen3.5" else "mtp.odd"
    with pytest.raises(ValueError, match=r"not read whole as family .*1 keys that nothing reads .*odd"):
        read_mtp(str(stored.save(tmp_path / "b", **{beside: torch.ones(3)})), model_info_of(model))


@pytest.mark.parametrize(
    ("kind", "tensors"),
    [
        ("DFlash2", {"layers.1.attention_conv.base_kernel": (2, 2, 64), "layers.1.mlp_conv.base_kernel": (2, 2, 64)}),
        ("DFlash2", {"candidate_selector.hidden_projection.weight": (4, 64)}),
        ("LiLiCorr", {"slot_embedding": (4, 8), "anchor_out_head.weight": (8, 8)}),
        ("Gemma", {"layers.0.pre_feedforward_layernorm.weight": (64,), "layers.0.layer_scalar": (1,)}),
    ],
)
def test_another_kind_of_block_head_is_named(kind: str, tensors: dict[str, tuple[int, ...]], tmp_path: Path) -> None:
    """All of these have every tensor of a DFlash head, too."""
    folder = DFLASH["dflash"].save(tmp_path, **{key: torch.zeros(shape) for key, shape in tensors.items()})
    with pytest.raises(ValueError, match=f"{len(tensors)} keys that nothing reads .*as of .*{kind}"):
        read_dflash(str(folder))


NARROW = torch.zeros(4, 4).to(torch.float8_e4m3fn)
QUANTISED: dict[str, dict[str, torch.Tensor]] = {
    "compressed-tensors int8": {"weight": torch.zeros(4, 4, dtype=torch.int8), "weight_scale": torch.ones(4, 1)},
    "compressed-tensors fp8": {"weight": NARROW, "weight_scale": torch.ones(4, 1)},
    "compressed-tensors NVFP4": {"weight_packed": torch.zeros(4, 2, dtype=torch.uint8), "weight_scale": NARROW},
    "ModelOpt NVFP4": {"weight": torch.zeros(4, 2, dtype=torch.uint8), "weight_scale": NARROW},
    "fp8 without scales": {"weight": NARROW},
}


@pytest.mark.parametrize("how", QUANTISED)
@pytest.mark.parametrize("name", ["eagle-3", "dspark"])
def test_a_quantised_head_is_refused_as_such(name: str, how: str, tmp_path: Path) -> None:
    """And not as one with tensors that nothing reads, as its scales are."""
    layout, read = (EAGLE[name], read_checkpoint) if name in EAGLE else (DFLASH[name], read_dflash)
    part = "layers.0.mlp.up_proj."
    changed = {f"{part}weight": None, **{part + name: value for name, value in QUANTISED[how].items()}}
    with pytest.raises(ValueError, match=r"is quantised \(.*up_proj.weight\w* is .*name its weights in full precision"):
        read(str(layout.save(tmp_path, **changed)))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"architectures": ["LiLiCorrDraftModel"]}, "another family: .*LiLiCorrDraftModel"),
        ({"architectures": ["DeepseekV4ForCausalLM"]}, "another family: .*DeepseekV4ForCausalLM"),
        (
            {"architectures": ["Gemma4DSparkModel"]},
            r"layers of Gemma \(Gemma4DSparkModel\).*nearest .* Llama",
        ),
        ({"model_type": "gemma4_text"}, "layers of Gemma"),
        ({"hidden_act": "silou"}, "silou.*silu"),
        ({"hidden_act": None, "hidden_activation": "gelu_pytorch_tan"}, "gelu_pytorch_tan.*gelu_pytorch_tanh"),
        ({"hidden_act": "silu", "hidden_activation": "gelu"}, "two activations, silu and gelu"),
        ({"is_neox_style": False}, "is_neox_style = False, which are not computed; .*Llama"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5"),
        ({"projector_type": "dominos"}, "another family .*projector_type 'dominos'"),
    ],
)
def test_a_config_of_another_family_of_block_heads(changed: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=said):
        read_dflash(str(DFLASH["dflash"].save(tmp_path, changed=changed)))


@pytest.mark.parametrize("name", ["eagle-3", "hydra++", "clover-2"])
@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"hidden_act": "silou"}, r"silou.*silu"),
        ({"architectures": ["GemmaForCausalLMEagle3"]}, "layers of Gemma"),
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping = 50.0"),
        ({"rope_interleave": True}, "rope_interleave = True"),
    ],
)
def test_a_config_of_other_layers(name: str, changed: dict[str, Any], said: str, tmp_path: Path) -> None:
    layout, read = (EAGLE[name], read_checkpoint) if name in EAGLE else (PATHS[name], PATHS[name].read)
    with pytest.raises(ValueError, match=said):
        read(str(layout.save(tmp_path, changed=changed)))


@pytest.mark.parametrize(
    ("layout", "changed", "units"),
    [
        ("dflash", {}, 3),
        ("dflash", {"shift_label": True}, 4),
        ("dflash", {"shift_label": False}, 3),
        ("dspark-without-heads", {}, 4),
        ("dspark-without-heads", {"sample_from_anchor": False}, 3),
        ("dspark-without-heads", {"architectures": ["DFlashDraftModel"]}, 3),
        ("dspark", {}, 4),
        ("dspark", {"dspark_bonus_anchor": True}, 3),
    ],
)
def test_where_the_labels_of_a_block_begin(layout: str, changed: dict[str, Any], units: int, tmp_path: Path) -> None:
    """At the root, or behind it: a block of four has one unit less."""
    head = read_dflash(str(DFLASH[layout].save(tmp_path, changed=changed)))
    assert head.architecture.units == units


def test_a_copy_that_is_none(tmp_path: Path) -> None:
    tied = PATHS["mlp-speculator-tied"]
    other = torch.ones(tied.weights()["speculator.emb.0.weight"].shape)
    with pytest.raises(ValueError, match=r"one tensor for all depths, and speculator.emb.1.weight is another"):
        tied.read(str(tied.save(tmp_path, **{"speculator.emb.1.weight": other})))
