"""New heads of the kinds medusa, clover, mtp and dflash for a target, and their files."""

from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm

from mmspec.core.hidden import FINAL
from mmspec.hosts.draft_models import own_target
from mmspec.hosts.model_info import ModelInfo
from mmspec_text.drafters.clover import CloverNetwork
from mmspec_text.drafters.clover_2 import Clover2Sizes
from mmspec_text.drafters.heads.dflash.family import DFlashArchitecture, Sight
from mmspec_text.drafters.heads.dflash.network import DFlashNetwork
from mmspec_text.drafters.heads.layers import BlockSizes
from mmspec_text.drafters.heads.mtp.block import EXPERTS
from mmspec_text.drafters.heads.mtp.checkpoint import MtpCheckpoint
from mmspec_text.drafters.heads.mtp.family import DEEPSEEK, own_keys
from mmspec_text.drafters.heads.mtp.network import MtpNetwork
from mmspec_text.drafters.medusa import FIRST_BLOCK, MedusaNetwork, MedusaSizes
from mmspec_text.training.new_head import (
    NewHead,
    draw_weights,
    half,
    join_model,
    layer_entries,
    refuse_widths,
    sizes_for,
    write_files,
)
from mmspec_text.training.recipe import DrafterRecipe
from mmspec_text.training.written import ends


def begun_medusa(model: Any, recipe: DrafterRecipe, name: str, ids: Tensor | None = None) -> NewHead:
    """As many heads as a draft is deep (Medusa-1: Cai et al., arXiv 2401.10774, § 2.2.1); arguments as in `Begin`.

    One residual block and one output layer for each depth, as in the paper; the output layers begin as the target's,
    and cost hidden width × vocabulary numbers each. Without output layers of their own (the recipe's `own_output`), all
    heads use the target's, and a head of a small target is a few hundred thousand numbers. Blocks begin at zero, so
    that at first every head scores as the target's output layer does.
    """
    config, own = model.config.get_text_config(decoder=True), recipe.own_output
    hidden, vocab = config.hidden_size, config.vocab_size
    refuse_widths(model, hidden)
    sizes = MedusaSizes(
        recipe.depth, hidden, hidden, vocab, vocab, own_embedding=True, one_output=not own, own_output=own
    )
    network = MedusaNetwork(sizes, vocab)
    for weights in network.blocks.parameters():
        nn.init.zeros_(weights)
    with torch.no_grad():
        for weights in network.lm_heads.parameters():
            weights.copy_(model.get_output_embeddings().weight)
    join_model(network, model)
    return NewHead(network, (FINAL,), "blocks", partial(write_medusa, network, name))


def write_medusa(head: MedusaNetwork, target: str, folder: Path) -> None:
    """Write heads: with output layers in the authors' layout, `{head}.{block}.linear` and `{head}.{blocks}`; without
    in vLLM's, `blocks.{head}.layers.{block}`.
    """
    state, own = head.state_dict(), len(head.lm_heads) > 0
    layers = sum(key.startswith("blocks.0.") for key in state) // 2
    block, stem = ("{}.{}.linear.{}", "medusa_") if own else ("blocks.{}.layers.{}.{}", "")
    weights = {}
    for key, value in state.items():
        part, number, *rest = key.split(".")
        name = block.format(number, *rest) if part == "blocks" else f"{number}.{layers}.weight"
        weights[name] = half(value)
    config = {
        "architectures": ["MedusaModel"],
        "model_type": "medusa",
        "base_model_name_or_path": target,
        f"{stem}num_heads": head.units,
        "medusa_num_layers" if own else "num_hidden_layers": layers,
        "hidden_size": state[FIRST_BLOCK].shape[1],
        "vocab_size": head.vocab,
        "original_lm_head": not own,
        "medusa_fc_bias": True,
        "dtype": "float16",
    }
    write_files(weights, config, folder, *(["medusa_lm_head.pt"] if own else []))  # what their loader reads


def begun_clover(model: Any, recipe: DrafterRecipe, name: str, ids: Tensor | None = None) -> NewHead:
    """A head of Clover (arXiv 2405.00263) with as many steps as a draft is deep; arguments as in `Begin`.

    It begins as its authors' second version does: the block and the norms as the target's last ones, the cell's queries
    and keys as they are given, with a little noise, its values near zero. Projections begin at zero. The block of a
    target whose layers are no Llama's is drawn, and adds nothing at first. The paper's notes name the text's own tokens
    as the loss; version 2's weights fall by 0.7 from step to step, and its rate is 1e-3: here with AdamW for all.
    """
    info, sizes = own_target(model).model_info, sizes_for(model, recipe.intermediate)
    hidden, vocab, layers = sizes["hidden"], sizes["vocab"], info.language.layers
    if hidden % sizes["heads"]:
        raise ValueError(
            f"the cell of Clover has the target's {sizes['heads']} heads, which do not make its {hidden} numbers: "
            "train --kind eagle3"
        )
    block = BlockSizes(**{key: value for key, value in sizes.items() if key in BlockSizes.__dataclass_fields__})
    network = CloverNetwork(
        Clover2Sizes(recipe.depth, hidden, hidden, vocab, vocab, own_embedding=True, block=block, layers=1), vocab
    )
    draw_weights(network, recipe.seed)
    own, mine = layers[-1].state_dict(), network.layers[0].state_dict()
    if {key: value.shape for key, value in own.items()} == {key: value.shape for key, value in mine.items()}:
        network.layers[0].load_state_dict(own)
        for norm in (network.clover_norm, network.clover_head_norm):
            norm.load_state_dict(final_norm(info).state_dict())
    generator = torch.Generator().manual_seed(recipe.seed)
    with torch.no_grad():
        for part in "qkv":
            weight = network.clover_head_mlp_rnn.get_parameter(f"{part}.weight")
            weight.uniform_(0, 0.01, generator=generator)
            if part != "v":
                weight.add_(torch.eye(hidden))
        for key, weight in network.named_parameters():
            if key.endswith(".bias") or key.startswith("clover_head_mlp."):
                weight.zero_()
    join_model(network, model)
    return NewHead(network, (len(layers),), None, partial(write_clover, network, block, name))


def write_clover(head: CloverNetwork, block: BlockSizes, target: str, folder: Path) -> None:
    """Write a head with a block of these sizes for a target of that name into a folder, which `clover` reads."""
    config = {
        "architectures": ["CloverModel"],
        "verifier": target,
        "clover": {"num_heads": head.units, "num_layers": head.depth},
        **layer_entries(block, head.depth, head.vocab),
        "dtype": "float16",
    }
    write_files({key: half(value) for key, value in head.state_dict().items()}, config, folder)


LAST = ("o_proj.weight", "down_proj.weight")
"""Ends of the keys of the matrices that write into a block's residual stream."""


def begun_mtp(model: Any, recipe: DrafterRecipe, name: str, ids: Tensor | None = None) -> NewHead:
    """One layer for multi-token prediction (FastMTP, arXiv 2509.18362); arguments as in `Begin`.

    It is recycled to the depth of a draft, its loss weighted by β ** depth (the recipe's `decay`; the paper's is 0.6);
    embedding and output layer are the target's. The paper's unroll lets a step read the states of its own step alone;
    here a step sees the rows that it sees when it drafts (`drafters.heads.unroll`).
    """
    model_info = own_target(model).model_info
    head = new_mtp(model_info, recipe.seed)
    return NewHead(head, (FINAL,), "layers", partial(write_mtp, head, model_info, name))


def new_mtp(model_info: ModelInfo, seed: int) -> MtpNetwork:
    """A layer before training: the target's last one, which at first adds nothing to the target's state."""
    block, kind = model_info.language.layers[-1], type(model_info.model).__name__
    weights = {key: value.detach().float().clone() for key, value in block.state_dict().items()}
    norm = dict(block.named_children()).get("input_layernorm")
    plain = norm is not None and list(norm.state_dict()) == ["weight"] and DEEPSEEK.eps in model_info.config.to_dict()
    if norm is None or not plain or any(EXPERTS in f".{key}" for key in weights):
        raise ValueError(
            f"{kind} has layers with experts, or of another form than a Llama's; no multi-token layer is trained for "
            "them: train --kind eagle3"
        )
    for key in weights:
        if key.endswith(LAST):
            nn.init.zeros_(weights[key])
    hidden, made = model_info.config.hidden_size, torch.Generator().manual_seed(seed)
    unit: Tensor = type(norm)(hidden).get_parameter("weight").detach().float()  # 1, or 0 where a weight w means 1 + w
    projection = torch.zeros(hidden, 2 * hidden).normal_(std=0.02, generator=made)
    projection[:, hidden:] += torch.eye(hidden)
    own = {
        "layers.0.projection.weight": projection,
        "layers.0.embedding_norm.weight": unit.clone(),
        "layers.0.hidden_norm.weight": unit.clone(),
        "layers.0.final_norm.weight": unit + (_size(model_info, unit) - 1),
    }
    blocks = {f"layers.0.{key}": value for key, value in weights.items()}
    start = (DEEPSEEK.at(DEEPSEEK.block, 0, len(model_info.language.layers)),)
    network = MtpNetwork(MtpCheckpoint("new", DEEPSEEK, 1, own, blocks, start, ()), model_info)
    network.join_model(model_info)
    return network.float().requires_grad_(True)


def write_mtp(head: MtpNetwork, model_info: ModelInfo, target: str, folder: Path) -> None:
    """Write a layer for a target of that name into a folder of its own, which `mtp` reads.

    The keys are those of DeepSeek-V3's layer, `model.layers.{L}.…`, whose block is a block of the target's own class:
    so the layer could be appended to the target's checkpoint.
    """
    layers = len(model_info.language.layers)
    start = DEEPSEEK.at(DEEPSEEK.block, 0, layers)
    names = {f"layers.0.{part}": key for part, key in own_keys(DEEPSEEK, 0, layers).items()}
    weights = {}
    for key, value in head.state_dict().items():
        weights[names[key] if key in names else start + key.removeprefix("layers.0.block.")] = half(value)
    config = {
        "verifier": target,
        "num_hidden_layers": layers,
        "num_nextn_predict_layers": 1,
        "hidden_size": model_info.config.hidden_size,
        "vocab_size": model_info.vocab,
        "dtype": "float16",
    }
    write_files(weights, config, folder)


def final_norm(model_info: ModelInfo) -> Any:
    """The target's final norm, or None."""
    norms: Any = [part for part in model_info.language.decoder.children() if "norm" in type(part).__name__.lower()]
    return norms[-1] if norms else None


def _size(model_info: ModelInfo, unit: Tensor) -> float:
    """The size of the numbers of the target's last states, those behind its final norm."""
    norm = final_norm(model_info)
    weight = unit if norm is None or norm.weight.shape != unit.shape else norm.weight
    return float((weight.detach().float().cpu() - unit + 1).square().mean().sqrt())


SPREAD = 2.0
"""The largest deviation, at first, of the scores of a row that is not known."""


def begun_dflash(model: Any, recipe: DrafterRecipe, name: str, ids: Tensor | None = None) -> NewHead:
    """A DFlash head (arXiv 2602.06036) whose block has as many units as a draft; as in `Begin`, without `ids`.

    Embedding and output layer are the target's and stay as they are, and so does the row of the id that stands for
    units that are not known: one that texts have seldom. What enters the layers there is that row alone, by which a
    target whose output layer is its embedding says that id again, at tens of nats: so all matrices are drawn, and the
    last norm begins small. In training, blocks begin behind roots drawn from what is learnt, and depth k counts
    exp(-(k - 1) / 4): the recipe's `decay` of 0.78.
    """
    layers = model.config.get_text_config(decoder=True).num_hidden_layers
    boundaries = inner_boundaries(layers)
    sizes = sizes_for(model, recipe.intermediate)
    architecture = DFlashArchitecture(
        **sizes,
        sights=(Sight(),) * recipe.layers,
        draft_vocab=sizes["vocab"],
        features=len(boundaries),
        own_output=False,
        own_mask=False,
        block=recipe.depth + 1,
        mask_token=mask_token_of(model),
        from_root=False,
    )
    head = DFlashNetwork(architecture, sizes["vocab"])
    draw_weights(head, recipe.seed, silent=False)
    with torch.no_grad():
        row = model.get_input_embeddings().weight[architecture.mask_token]
        spread = model.get_output_embeddings()(rms_norm(row, row.shape)).float().std()
        head.norm.weight.mul_((SPREAD / spread.cpu()).clamp(max=1))
    join_model(head, model)
    return NewHead(head, boundaries, "layers", partial(write_dflash, head, boundaries, name, layers))


def inner_boundaries(layers: int) -> tuple[int, ...]:
    """An early, a middle and a late boundary of a target with so many layers.

    Behind the last layer there is none: some engines read the state there before the target's final norm, and some
    behind it.
    """
    return tuple(sorted({min(2, layers - 1), (layers + 1) // 2, max(layers - 2, 1)} - {layers} or {0}))


def mask_token_of(model: Any) -> int:
    """The id that stands for units that are not known: the target's for a mask or for padding, or its last one.

    Padding that ends texts, too, is none; nor is a row of zeros, from which all rows of a block would look alike.
    """
    config, table = model.config.get_text_config(decoder=True), model.get_input_embeddings().weight
    ids = getattr(config, "mask_token_id", None), getattr(config, "pad_token_id", None)
    last = ends(model).tolist()
    usable = (one for one in ids if one is not None and one not in last and bool(table[one].any()))
    return next(usable, len(table) - 1)


def write_dflash(head: DFlashNetwork, boundaries: tuple[int, ...], target: str, layers: int, folder: Path) -> None:
    """Write a head, which reads the states at these boundaries of a target of so many layers, into a folder."""
    a = head.architecture
    config = {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "verifier": target,
        "block_size": a.block,
        "num_target_layers": layers,
        "dflash_config": {
            "mask_token_id": a.mask_token,
            "target_layer_ids": [boundary - 1 for boundary in boundaries],
        },
        **layer_entries(a, len(a.sights), a.vocab),
        "layer_types": ["full_attention"] * len(a.sights),
        "dtype": "float16",
    }
    write_files({key: half(value) for key, value in head.state_dict().items()}, config, folder)
