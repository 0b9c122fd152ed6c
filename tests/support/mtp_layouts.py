"""Tiny checkpoints with multi-token layers, in the layout of every family, and what their forward is.

A model with more layers than the target is built and stored by transformers; the layers behind the target's are the
blocks, under the names of the family.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from tests.support.mtp_forward import Flags, WrittenOut
from tests.support.zoo import ARCHITECTURES, RECURRENT, WINDOW
from tests.support.zoo.recipe import VOCAB, Recipe

PLAIN = Flags()
BEHIND = {
    "projection": "model.layers.{n}.eh_proj",
    "embedding_norm": "model.layers.{n}.enorm",
    "hidden_norm": "model.layers.{n}.hnorm",
}
QWEN = {
    "projection": "mtp.fc",
    "embedding_norm": "mtp.pre_fc_norm_embedding",
    "hidden_norm": "mtp.pre_fc_norm_hidden",
    "final_norm": "mtp.norm",
}


@dataclass(frozen=True)
class Stored:
    """A layout under test."""

    recipe: str  # the target in the zoo
    family: str  # the name of its family
    own: Mapping[str, str]  # keys of the parts beside the blocks, by the forward's names
    block: str  # beginning of the keys of a block
    flags: Flags = PLAIN  # what the forward computes
    count: str = "num_nextn_predict_layers"  # the setting that counts the depths
    depths: int = 1  # their number
    kind: str = "full_attention"  # what the blocks attend over
    mlp: str = "sparse"  # what is behind their attention
    extra: tuple[str, ...] = ()  # further keys, which are copies
    renamed: Mapping[str, str] = field(default_factory=dict)  # the layer's names → the checkpoint's
    bias: bool = False  # whether the projection has one
    # parts of the checkpoint's keys → what transformers calls them in memory
    other: Mapping[str, str] = field(default_factory=dict)
    parts: tuple[str, ...] = ()  # what the layers of a block are, where it is a chain of several
    trunk: str = "model.layers."  # beginning of the keys of the target's own layers
    half: bool = False  # a block is the first attention and the first MLP of a layer that has two of each

    @property
    def target(self) -> Recipe:
        return {**ARCHITECTURES, **RECURRENT}[self.recipe]

    @cached_property
    def layers(self) -> int:
        settings = self.target.configuration()
        return int(settings.num_layers if "num_layers" in self.target.config else settings.num_hidden_layers)

    def deep(self) -> PreTrainedModel:
        """The target with its multi-token blocks as further layers."""
        return _deep(*self.whole)

    @property
    def whole(self) -> tuple[Any, ...]:
        """The parts of the deep model."""
        return self.recipe, self.depths, self.kind, self.mlp, self.parts

    def place(self, name: str, depth: int) -> str:
        return name.format(i=depth, n=self.layers + depth)

    def own_weights(self) -> dict[str, Tensor]:
        """Weights beside the blocks, by `layers.{i}.`."""
        hidden, made = self.target.configuration().hidden_size, {}
        for depth in range(self.depths):
            g = torch.Generator().manual_seed(depth)
            for part in self.own:
                matrix = torch.randn(hidden, 2 * hidden, generator=g) * 2 / hidden**0.5
                if part == "embedding":
                    made[f"layers.{depth}.{part}.weight"] = torch.randn(VOCAB, hidden, generator=g)
                    continue
                made[f"layers.{depth}.{part}.weight"] = (
                    matrix if part == "projection" else 1 + 0.3 * torch.randn(hidden, generator=g)
                )
            if self.bias:
                made[f"layers.{depth}.projection.bias"] = torch.randn(hidden, generator=g)
        return made

    def keys(self) -> dict[str, Tensor]:
        """The multi-token part of the checkpoint."""
        made = {}
        for key, value in self.own_weights().items():
            _, number, part, end = key.split(".")
            made[f"{self.place(self.own[part], int(number))}.{end}"] = value
        for key, value in _stored(*self.whole)[0].items():
            for depth in range(self.depths * max(1, len(self.parts))):
                start = f"{self.trunk}{self.layers + depth}."
                if key.startswith(start):
                    rest = key.removeprefix(start)
                    if self.half and not FIRST.match(rest):
                        continue
                    for old, new in self.renamed.items():
                        rest = rest.replace(old, new)
                    made[self.place(self.block, depth) + (f"{depth}." if self.parts else "") + rest] = value
        repeated = {key: "lm_head" if "head" in key else "model.embed_tokens" for key in self.extra}
        whole, depths = _stored(*self.whole)[0], range(self.depths)
        return made | {self.place(key, i): whole[f"{repeated[key]}.weight"] for key in self.extra for i in depths}

    def save(self, folder: Path, changed: Mapping[str, Any] | None = None, **tensors: Any) -> Path:
        """Write the whole checkpoint; entries of the config and tensors (None leaves one out) may be changed."""
        folder.mkdir(parents=True, exist_ok=True)
        whole, _ = _stored(*self.whole)
        more = range(self.depths * max(1, len(self.parts)))
        mine = {k: v for k, v in whole.items() if not any(self._behind(k, depth) for depth in more)}
        weights = {**mine, **self.keys(), **tensors}
        kept = {key: value.clone().contiguous() for key, value in weights.items() if value is not None}
        save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
        config = {**self.target.configuration().to_dict(), "architectures": [type(self.deep()).__name__]}
        (folder / "config.json").write_text(json.dumps({**config, self.count: self.depths, **(changed or {})}))
        return folder

    def _behind(self, key: str, depth: int) -> bool:
        return key.startswith(f"{self.trunk}{self.layers + depth}.")

    def loaded(self, folder: Path) -> Any:
        """The target alone, as transformers loads it."""
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        model.generation_config.eos_token_id = None
        model.generation_config.pad_token_id = 0
        return model

    def written_out(self, model: Any) -> WrittenOut:
        deep: Any = self.deep()
        deep.set_attn_implementation("eager")
        blocks = deep.get_decoder().layers[self.layers :]
        if self.parts:
            return WrittenOut(model, [in_a_row(list(blocks))], self.own_weights(), self.flags)
        made = [half_of(block) for block in blocks] if self.half else list(blocks)
        return WrittenOut(model, made, self.own_weights(), self.flags)


def in_a_row(layers: list[Any]) -> Callable[..., Tensor]:
    """A block of several layers."""

    def run(x: Tensor, **arguments: Any) -> Tensor:
        for layer in layers:
            x = layer(x, **arguments)
        return x

    return run


def half_of(layer: Any) -> Callable[..., Tensor]:
    """A block of the first attention and the first MLP of a layer."""

    def run(x: Tensor, **arguments: Any) -> Tensor:
        x = x + layer.self_attn[0](layer.input_layernorm[0](x), **arguments)[0]
        return x + layer.mlps[0](layer.post_attention_layernorm[0](x))

    return run


@cache
def _deep(recipe: str, depths: int, kind: str, mlp: str, parts: tuple[str, ...] = ()) -> PreTrainedModel:
    base = {**ARCHITECTURES, **RECURRENT}[recipe]
    settings = base.configuration()
    changed: dict[str, Any] = {"num_hidden_layers": settings.num_hidden_layers + depths}
    for name, value in (("layer_types", kind), ("mlp_layer_types", mlp)):
        if getattr(settings, name, None) is not None:
            changed[name] = [*getattr(settings, name), *[value] * depths]
    if parts:
        changed = {"layers_block_type": [*settings.layers_block_type, *parts]}
    if "num_layers" in base.config:  # which counts layers with two attentions each
        layers = base.config["num_layers"] + depths
        changed = {"num_layers": layers, "num_hidden_layers": 2 * layers}
    return replace(base, config={**base.config, **changed}).model()


@cache
def _stored(*whole: Any) -> tuple[dict[str, Tensor], str]:
    """The deep model as transformers stores it."""
    with TemporaryDirectory() as folder:
        _deep(*whole).save_pretrained(folder)
        return load_file(Path(folder) / "model.safetensors"), folder


NEXT = Flags(plus_one=True)
HEAD = "model.layers.{n}."
LAYOUTS: dict[str, Stored] = {
    "mimo": Stored(
        "qwen2",
        "mimo",
        {
            "projection": "model.mtp_layers.{i}.input_proj",
            "embedding_norm": "model.mtp_layers.{i}.token_layernorm",
            "hidden_norm": "model.mtp_layers.{i}.hidden_layernorm",
            "final_norm": "model.mtp_layers.{i}.final_layernorm",
        },
        "model.mtp_layers.{i}.",
        Flags(hidden_first=True, zeroed=True),
    ),
    "deepseek": Stored(
        "deepseek_v3",
        "deepseek",
        {**BEHIND, "final_norm": HEAD + "shared_head.norm"},
        HEAD,
        extra=(HEAD + "shared_head.head.weight", HEAD + "embed_tokens.weight"),
    ),
    "deepseek-two": Stored(
        "deepseek_v3", "deepseek", {**BEHIND, "final_norm": HEAD + "shared_head.norm"}, HEAD, depths=2
    ),
    "glm": Stored("glm4_moe", "deepseek", {**BEHIND, "final_norm": HEAD + "shared_head.norm"}, HEAD),
    "glm-lite": Stored("glm4_moe_lite", "deepseek", {**BEHIND, "final_norm": HEAD + "shared_head.norm"}, HEAD),
    "bailing": Stored(
        "bailing_hybrid",
        "bailing",
        {**BEHIND, "final_norm": HEAD + "final_layernorm"},
        HEAD,
        other={"attention.": "self_attn.", "dense": "o_proj", "expert_bias": ""},
    ),
    "qwen3-next": Stored("qwen3_next", "qwen", QWEN, "mtp.layers.{i}.", NEXT, "mtp_num_hidden_layers"),
    "qwen3.5": Stored("qwen3_5_text", "qwen", QWEN, "mtp.layers.{i}.", NEXT, "mtp_num_hidden_layers"),
    "qwen3.5-moe": Stored("qwen3_5_moe_text", "qwen", QWEN, "mtp.layers.{i}.", NEXT, "mtp_num_hidden_layers"),
    "mellum": Stored(
        "mellum",
        "qwen",
        QWEN,
        "mtp.layers.{i}.",
        Flags(window=WINDOW, kind="sliding_attention"),
        kind="sliding_attention",
    ),
    "exaone": Stored(
        "exaone_moe", "exaone", QWEN, "mtp.layers.{i}.", Flags(window=WINDOW), kind="sliding_attention", mlp="dense"
    ),
    "mimo-v2": Stored(
        "mimo_v2_flash",
        "mimo-v2",
        {
            "projection": "model.mtp.layers.{i}.eh_proj",
            "embedding_norm": "model.mtp.layers.{i}.enorm",
            "hidden_norm": "model.mtp.layers.{i}.hnorm",
            "final_norm": "model.mtp.layers.{i}.final_layernorm",
        },
        "model.mtp.layers.{i}.",
        Flags(window=WINDOW, kind="sliding_attention"),
        kind="sliding_attention",
        mlp="dense",
        renamed={"post_attention_layernorm": "pre_mlp_layernorm"},
        other={"attention_sink_bias": "sinks"},
    ),
    "ernie": Stored(
        "ernie4_5_moe",
        "ernie",
        {
            "projection": "model.mtp_linear_proj.{i}",
            "embedding_norm": "model.mtp_emb_norm.{i}",
            "hidden_norm": "model.mtp_hidden_norm.{i}",
        },
        "model.mtp_block.{i}.",
        Flags(zeroed=True, final=False),
        bias=True,
    ),
    "nemotron-h": Stored(
        "nemotron_h",
        "nemotron-h",
        {
            "projection": "mtp.layers.0.eh_proj",
            "embedding_norm": "mtp.layers.0.enorm",
            "hidden_norm": "mtp.layers.0.hnorm",
            "final_norm": "mtp.layers.1.final_layernorm",
        },
        "mtp.layers.",
        Flags(rotary=False, eps="layer_norm_epsilon"),
        parts=("full_attention", "moe"),
        trunk="backbone.layers.",
    ),
    "longcat": Stored(
        "longcat_flash",
        "longcat",
        {
            "projection": "model.mtp.layers.0.eh_proj",
            "embedding_norm": "model.mtp.layers.0.enorm.m",
            "hidden_norm": "model.mtp.layers.0.hnorm.m",
            "final_norm": "model.mtp.norm",
            "embedding": "model.mtp.embed_tokens",
        },
        "model.mtp.layers.0.",
        renamed={"mlps.0.": "transformer_layer.mlp.", "norm.0.": "norm.", "attn.0.": "attn."},
        half=True,
    ),
}
"""Name → layout."""
FIRST = re.compile(r"(self_attn|mlps|input_layernorm|post_attention_layernorm)\.0\.")
"""The first of what a layer has two of."""
