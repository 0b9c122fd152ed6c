"""ChatPose's released files (arXiv 2311.18836): a LLaVA 1.5 with `text_hidden_fcs`, under its authors' keys.

A folder holds `config.json`, `added_tokens.json`, which has the signal token, and the weights as safetensors or as
`pytorch_model*.bin`, which are read without running code of theirs. CLIP's vision tower is a folder of its own, as in
LLaVA. The body model's numbers (`model.smplx.*`) are left out: poses end as rotations here. Whatever else is in the
files, or is not, is refused by its name.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import CLIPVisionModel, LlamaConfig, LlavaConfig

from mmspec_pose.body import PARENTS
from mmspec_pose.model import PoseLlava

SIGNALS = ("[SEG]", "[POSE]")
"""Names of the signal token: of the released weights, and of the paper."""
HEAD = "model.text_hidden_fcs.0."
RENAMED = (
    (HEAD, "pose_head."),
    ("model.mm_projector.0.", "model.multi_modal_projector.linear_1."),
    ("model.mm_projector.2.", "model.multi_modal_projector.linear_2."),
    ("model.vision_tower.vision_tower.vision_model.", "model.vision_tower."),
    ("model.", "model.language_model."),
)
"""Beginnings of released keys, and of ours; the first that fits."""
LEFT_OUT = ("model.smplx.", ".rotary_emb.inv_freq", ".embeddings.position_ids")
"""Parts of keys of what is no weight of the model."""


def load_released(folder: Path, vision: Path, dtype: torch.dtype = torch.float32) -> PoseLlava:
    """The model of a released folder and of a folder of CLIP's vision tower.

    Pictures stand in prompts as the id behind the released vocabulary, for which a row is added to both tables.

    Raises:
        ValueError: The files are of another layout; names what is missing, or what has no place.
    """
    weights = {key: value for key, value in stored(folder).items() if not any(part in key for part in LEFT_OUT)}
    refuse_head(weights)
    eyes = CLIPVisionModel.from_pretrained(vision, dtype=dtype)
    config = json.loads((folder / "config.json").read_text())
    model = PoseLlava(configuration(config, eyes.config, signal_of(folder))).to(dtype).eval()
    own = {f"model.vision_tower.{key.removeprefix('vision_model.')}": each for key, each in eyes.state_dict().items()}
    found = own | {renamed(key): value for key, value in weights.items()}
    for table in ("model.language_model.embed_tokens.weight", "lm_head.weight"):
        if table in found:  # the row of pictures: as unlikely to be written as the first, `<unk>`
            found[table] = torch.cat([found[table], found[table][:1]])
    expected = model.state_dict()
    missing, other = sorted(expected.keys() - found.keys()), sorted(found.keys() - expected.keys())
    if missing or other:
        raise ValueError(
            f"this is no ChatPose: missing {missing[:3] or 'nothing'}, without a place {other[:3] or 'nothing'}"
        )
    model.load_state_dict(found)
    return model


def stored(folder: Path) -> dict[str, Tensor]:
    """All weights of a folder."""
    files = sorted(folder.glob("*.safetensors")) or sorted(folder.glob("pytorch_model*.bin"))
    if not files:
        raise ValueError(f"there are no *.safetensors and no pytorch_model*.bin in {folder}")
    found: dict[str, Tensor] = {}
    for file in files:
        found |= load_file(file) if file.suffix == ".safetensors" else torch.load(file, "cpu", weights_only=True)
    return found


def refuse_head(weights: Mapping[str, Tensor]) -> None:
    """Refuse weights whose head is none of 24 joints."""
    there = sorted(key for key in weights if "text_hidden_fcs" in key)
    wanted = [f"{HEAD}{layer}.{kind}" for layer in (0, 2) for kind in ("bias", "weight")]
    if there != wanted:
        raise ValueError(f"ChatPose's head is {', '.join(wanted)}; here are {', '.join(there) or 'none of them'}")
    if len(weights[f"{HEAD}2.weight"]) != 6 * len(PARENTS):
        numbers = len(weights[f"{HEAD}2.weight"])
        raise ValueError(
            f"the head makes {numbers} numbers, and a pose has {6 * len(PARENTS)}: six for each of 24 joints"
        )


def signal_of(folder: Path) -> int:
    """The id of the signal token."""
    file = folder / "added_tokens.json"
    added = json.loads(file.read_text()) if file.is_file() else {}
    for name in SIGNALS:
        if name in added:
            return int(added[name])
    raise ValueError(f"{file} has no signal token ({' or '.join(SIGNALS)}), which stands for a pose")


def configuration(config: Mapping[str, Any], vision: Any, signal: int) -> LlavaConfig:
    """Transformers' configuration of a released one."""
    if config.get("mm_projector_type") != "mlp2x_gelu":
        raise ValueError(f"LLaVA 1.5 joins by mlp2x_gelu, and this one by {config.get('mm_projector_type')!r}")
    names = (
        *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"),
        *("rms_norm_eps", "max_position_embeddings", "hidden_act", "bos_token_id", "eos_token_id"),
    )
    sizes = {name: config[name] for name in names if name in config}
    text = LlamaConfig(vocab_size=config["vocab_size"] + 1, tie_word_embeddings=False, **sizes)
    return LlavaConfig(
        text_config=text,
        vision_config=vision,
        image_token_index=config["vocab_size"],
        image_seq_length=(vision.image_size // vision.patch_size) ** 2,
        vision_feature_layer=config.get("mm_vision_select_layer", -2),
        vision_feature_select_strategy="default",
        signal_token_id=signal,
        tie_word_embeddings=False,
    )


def renamed(key: str) -> str:
    """A released key as ours."""
    return next((ours + key.removeprefix(theirs) for theirs, ours in RENAMED if key.startswith(theirs)), key)
