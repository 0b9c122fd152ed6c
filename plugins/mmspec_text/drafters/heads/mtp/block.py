"""The blocks of multi-token layers: decoder layers of the target's class, filled from a checkpoint's keys.

A checkpoint may have other keys than the class (experts lie one by one in files, and side by side in memory), so that
they go through transformers' own conversions for the target. Some blocks are not one layer of the target: several
of its layers in a row, or one attention and one MLP of its own.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import convert_and_load_state_dict_in_model
from transformers.modeling_utils import LoadStateDictConfig

from mmspec.hosts.masks import NAME
from mmspec.hosts.model_info import ModelInfo
from mmspec.hosts.weight_files import differences
from mmspec_text.drafters.heads.mtp.family import Family

EXPERTS = ".experts."
"""Part of the keys of a block that routes to experts."""


class _Holder(PreTrainedModel):
    """The attribute that transformers fills: blocks under `layers`."""

    _supports_sdpa = _supports_flash_attn = _supports_flex_attn = True

    def __init__(self, config: Any, blocks: nn.ModuleList) -> None:
        super().__init__(config)
        self.layers = blocks


def attention_kinds(model_info: ModelInfo, attention: str, count: int) -> list[str]:
    """The reach of each of `count` blocks: `full_attention` or `sliding_attention`."""
    named = getattr(model_info.config, "mtp_layer_types", None)  # a config of transformers, which may say it
    if isinstance(named, Sequence) and not isinstance(named, str) and len(named) >= count:
        return list(named[:count])
    if attention == "first":
        kinds = getattr(model_info.config, "layer_types", None) or ["full_attention"]
        return [kinds[0]] * count
    return [attention] * count


def filled_blocks(
    model_info: ModelInfo,
    family: Family,
    kinds: Sequence[str],
    weights: Mapping[str, Tensor],
    originals: Sequence[str],
    what: str,
) -> nn.ModuleList:
    """Blocks with the weights of a checkpoint.

    `weights` are by `layers.{i}.` and the checkpoint's name; `originals` say what the checkpoint has in the place of
    each `layers.{i}.`, for messages.
    """
    sparse = any(EXPERTS in key for key in weights)
    config = _config(
        model_info.config, model_info.config.mtp_layers_block_type if family.made == "chain" else kinds, sparse
    )
    layer: Any = model_info.language.layers[-1]
    kind = type(layer)
    with torch.device("meta"):
        if family.made == "chain":
            blocks = nn.ModuleList([Chain(kind, config)])
        elif family.made == "plain":
            blocks = nn.ModuleList(Plain(layer, config, number) for number in range(len(kinds)))
        else:
            blocks = nn.ModuleList(kind(config, number) for number in range(len(kinds)))
        holder = _Holder(config, blocks)
    shapes = {key: tuple(value.shape) for key, value in blocks.state_dict().items()}
    conversions = get_model_conversion_mapping(model_info.model, add_legacy=False)
    how = LoadStateDictConfig(weight_mapping=conversions, dtype=model_info.model.dtype, ignore_mismatched_sizes=True)
    info, _ = convert_and_load_state_dict_in_model(model=holder, state_dict=dict(weights), load_config=how)

    def named(key: str) -> str:
        _, number, rest = key.split(".", 2)
        for stored, ours in family.renamed.items():
            rest = rest.replace(ours, stored, 1) if rest.startswith(ours) else rest
        return originals[int(number)] + rest

    here = {f"layers.{key}": shape for key, shape in shapes.items()}
    other = [f"{named(key)}: {list(there)}, not {list(here[key])}" for key, there, _ in info.mismatched_keys]
    empty = {f"layers.{key}" for key, value in blocks.state_dict().items() if value.is_meta}
    missing = {named(key) for key in {*info.missing_keys, *empty} - {key for key, _, _ in info.mismatched_keys}}
    unexpected = {named(key) for key in info.unexpected_keys}
    failed = [str(error) for error in info.conversion_errors.values()]
    if wrong := differences(missing=missing, of_another_shape=other, without_a_place=unexpected, not_read=failed):
        raise ValueError(
            f"the multi-token layers of {what} do not fit the target's {kind.__name__}, whose names are used here: "
            f"{wrong}"
        )
    config._attn_implementation_internal = NAME
    config._experts_implementation_internal = model_info.config._experts_implementation
    return blocks.eval().requires_grad_(False)


def _config(whole: Any, kinds: Sequence[str], sparse: bool) -> Any:
    """The target's configuration `whole` for blocks alone, which count their layers from 0."""
    count, config = len(kinds), copy.deepcopy(whole)
    lists = {
        "layer_types": list(kinds),
        "mlp_layer_types": ["sparse" if sparse else "dense"] * count,
        "mlp_only_layers": [] if sparse else list(range(count)),
        "first_k_dense_replace": 0 if sparse else count,
        "decoder_sparse_step": 1,
        "moe_layer_interval": 1,
        "moe_layer_start_index": 0 if sparse else count,
        "moe_layer_end_index": count,
    }
    for name, value in lists.items():
        if getattr(config, name, None) is None:  # architectures name some of them
            continue
        try:
            setattr(config, name, value)
        except AttributeError as error:
            raise ValueError(f"no multi-token layer is made for a {config.model_type}: {error}") from None
    config.num_hidden_layers = count
    # Until transformers has looked at it.
    config._attn_implementation_internal = config._experts_implementation_internal = "eager"
    return config


CHAINED = "full_attention"
"""The first layer of a chain. The others keep nothing of earlier units."""
KEEPING = (CHAINED, "linear_attention")
"""Kinds of layers that do."""


class Chain(nn.ModuleList):
    """Layers of different kinds, one behind the other, as `layer_types` names them (Nemotron-H: attention, experts)."""

    def __init__(self, kind: Any, config: Any) -> None:
        kinds = config.layer_types
        if kinds[0] != CHAINED or any(each in KEEPING for each in kinds[1:]):
            raise ValueError(
                f"multi-token layers of the kinds {', '.join(kinds)} are not read: the first one attends, and the "
                "others neither attend nor are recurrent"
            )
        super().__init__(kind(config, number) for number in range(len(kinds)))

    def forward(self, x: Tensor, **arguments: Any) -> Tensor:
        for layer in self:
            x = layer(x, **arguments)
        return x


class Plain(nn.Module):
    """Attention and an MLP, each behind a norm, of a target whose layers have two of each (LongCat-Flash)."""

    def __init__(self, layer: nn.Module, config: Any, number: int) -> None:
        super().__init__()
        attention, mlp, norm = (
            type(layer.get_submodule(f"{part}.0")) for part in ("self_attn", "mlps", "input_layernorm")
        )
        self.input_layernorm: nn.Module = norm(config.hidden_size, eps=config.rms_norm_eps)
        self.self_attn: nn.Module = attention(config, number)
        self.post_attention_layernorm: nn.Module = norm(config.hidden_size, eps=config.rms_norm_eps)
        self.mlp: nn.Module = mlp(config)

    def forward(self, x: Tensor, **arguments: Any) -> Tensor:
        attended, *_ = self.self_attn(hidden_states=self.input_layernorm(x), **arguments)
        x = x + attended
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out
