"""Drafts with Medusa's heads: one for each depth, which all read the target's last state and no drafted unit.

Cai et al., arXiv 2401.10774: head i is a residual block and an output layer of its own, and it predicts the unit
i + 1 places behind the root from the state before the root. So a draft's distribution is a product over depths: it is
the same behind all nodes of a depth, and a tree is a choice of combinations.
A checkpoint holds the blocks and output layers of all heads, in the layout of the authors or of vLLM, which may share
one output layer and score a part of the ids (`token_map`). The paper's own acceptance is lossy: the rule `typical`.

    head i: x = h; for every block: x = x + SiLU(W x + b); logits of the unit i + 1 behind the root = E_i x

`h` is the feature. Layouts: `medusa`, the authors' `medusa_lm_head`, or under `medusa_head.` inside a whole model of
Medusa-2: `{head}.{block}.linear.{weight,bias}` and `{head}.{blocks}.weight`. The authors' `legacy` trainer writes no
output layers: then all heads use the target's.
`vllm`, also under `medusa_heads.`: `blocks.{head}.layers.{block}.{weight,bias}`, `lm_heads.{head}.weight` (one of them,
or `lm_head.weight`, with `original_lm_head`, or none: then it is the target's), and `token_map` with
`truncated_vocab_size`. The number of heads and blocks is read from the tensors: published configs of the first layout
name too few.
Guarantee: drafts carry the distribution they are drawn from, or are point masses; exact under the rules that take the
form. Wrong heads are lossless too, and slow: the first call tries them on the prompt and warns (`Medusa.loaded`).
Knobs: `form` is the shape of the draft; a wider tree costs the heads nothing, and every node costs the target.
"""

import re
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec_text.drafters.heads.entries import OF_LAYERS, Entries, agree, counted, number, part_numbers, positive
from mmspec_text.drafters.heads.layers import HeadNetwork
from mmspec_text.drafters.heads.pathwise.drafter import PathDrafter
from mmspec_text.drafters.heads.pathwise.head import PathCheckpoint, PathSizes
from mmspec_text.drafters.heads.stored import Stored, stored_head
from mmspec_text.drafters.heads.vocabulary import over_target


@dataclass(frozen=True)
class MedusaSizes(PathSizes):
    """The shape of Medusa's heads."""

    layers: int = 1  # residual blocks of a head
    bias: bool = True  # whether blocks have a bias
    one_output: bool = False  # whether all heads have one output layer
    own_output: bool = True  # whether output layers are stored; otherwise all heads use the target's
    pruned: bool = False  # whether they score a part of the ids, which `token_map` lists
    scale: float = 1.0  # factor of the logits


class MedusaNetwork(HeadNetwork):
    """See the module. It is a `PathHead`; a node's state is the feature."""

    token_map: Tensor | None

    def __init__(self, a: MedusaSizes, vocab: int) -> None:
        super().__init__()
        self.units, self.vocab, self.scale = a.units, vocab, a.scale
        width = a.target_hidden
        self.blocks = nn.ModuleList(
            nn.ModuleList(nn.Linear(width, width, bias=a.bias) for _ in range(a.layers)) for _ in range(a.units)
        )
        outputs = 0 if not a.own_output else 1 if a.one_output else a.units
        self.lm_heads = nn.ModuleList(nn.Linear(width, a.draft_vocab, bias=False) for _ in range(outputs))
        self.register_buffer("token_map", torch.empty(a.draft_vocab, dtype=torch.int64) if a.pruned else None)

    def rooted(self, features: Tensor, units: Tensor) -> Tensor:
        return features.to(self.dtype)

    def followed(self, states: Tensor, units: Tensor, depth: int) -> Tensor:
        return states

    def logits(self, states: Tensor, depth: int = 0) -> Tensor:
        x = states[:, :1]  # the same at all nodes of a row
        for layer in self.blocks[depth].children():
            x = x + F.silu(layer(x))
        output = self.lm_heads[min(depth, len(self.lm_heads) - 1)] if self.lm_heads else self.of_target(1)
        scored = output(x) * self.scale
        return over_target(scored, self.token_map, self.vocab).expand(-1, states.shape[1], -1)


FIRST_BLOCK, FIRST_OUTPUT, ONE_OUTPUT = "blocks.0.0.weight", "lm_heads.0.weight", "lm_head.weight"
PREFIX = re.compile(r"^medusa_heads?\.")
BLOCK = re.compile(r"^(?:blocks\.(\d+)\.layers\.(\d+)|(\d+)\.(\d+)\.linear)\.(weight|bias)$")
OUTPUT = re.compile(r"^(\d+)\.(\d+)\.weight$")
FORMS = {"vllm": ("blocks.0.layers.0.weight", FIRST_OUTPUT), "medusa": ("0.0.linear.weight", "0.0.linear.bias")}
"""Keys by which the layouts are known."""
ANY = 1 << 31
"""Ids of heads that have no table of ids: as many as the target has."""


def canonical(key: str) -> str:
    """A checkpoint's key as the network names it."""
    key = PREFIX.sub("", key)
    if found := BLOCK.match(key):
        head, block = found[1] or found[3], found[2] or found[4]
        return f"blocks.{head}.{block}.{found[5]}"
    if found := OUTPUT.match(key):
        return f"lm_heads.{found[1]}.weight"
    return key


def read_medusa(name: str) -> PathCheckpoint:
    """Read Medusa's heads from a folder or the hub."""
    own, ids, inside = ("medusa_lm_head",), ("token_map",), ("medusa_head.",)
    stored = stored_head(name, "a Medusa", canonical, stems=own, integers=ids, inside=inside)
    keys = {PREFIX.sub("", key) for key in stored.keys}
    layout = next((form for form, known in FORMS.items() if known[0] in keys), None)
    if layout is None:
        raise stored.no_layout(FORMS, keys)
    sizes = _sizes(stored, layout)
    wanted = {key for key in stored.headers if key.startswith("blocks.")}
    if sizes.own_output:
        wanted |= {f"lm_heads.{head}.weight" for head in range(1 if sizes.one_output else sizes.units)}
    wanted |= {"token_map"} if sizes.pruned else set()
    wanted |= {ONE_OUTPUT} if sizes.one_output else set()
    copies = {f"lm_heads.{head}.weight": FIRST_OUTPUT for head in range(1, sizes.units) if sizes.one_output}
    weights, ignored = stored.weights(wanted, copies)
    if ONE_OUTPUT in weights and FIRST_OUTPUT in weights:
        raise ValueError(f"{stored.what}: {FIRST_OUTPUT} and {ONE_OUTPUT} are the same part")
    if ONE_OUTPUT in weights:
        weights[FIRST_OUTPUT] = weights.pop(ONE_OUTPUT)
    if sizes.pruned:
        _prune(weights, sizes, stored.what)
    shared = () if sizes.own_output else (ONE_OUTPUT,)
    return PathCheckpoint(name, layout, sizes, MedusaNetwork, weights, ignored, shared, stored=stored)


def _sizes(stored: Stored, layout: str) -> MedusaSizes:
    config, headers, what = Entries(stored.config), stored.headers, stored.what
    named = ("medusa_num_heads", "medusa_num_layers") if layout == "medusa" else ("num_heads", "num_hidden_layers")
    heads = counted(part_numbers(headers, "blocks."), config, named[:1], what)
    blocks = counted(part_numbers(headers, "blocks.", 2), config, named[1:], what)
    width = stored.matrix(FIRST_BLOCK)[1]
    one = bool(config.get("original_lm_head", False)) and layout == "vllm"
    bare = layout == "medusa" and not any(key.startswith("lm_heads.") for key in headers)
    targets = bare or (one and headers.keys().isdisjoint({ONE_OUTPUT, FIRST_OUTPUT, "token_map"}))
    if bare:
        scored = ANY
    elif targets:
        scored = positive(config, "vocab_size", what)
    else:
        scored = stored.matrix(ONE_OUTPUT if one and ONE_OUTPUT in headers else FIRST_OUTPUT)[0]
    vocab = positive(config, "vocab_size", what) if layout == "vllm" else scored
    kept = positive(config, "truncated_vocab_size", what) if config.get("truncated_vocab_size") else vocab
    if kept < vocab and "token_map" not in headers:
        raise ValueError(
            f"{what} scores {kept} ids of {vocab} (truncated_vocab_size), and has no token_map of which ones"
        )
    if "token_map" in headers and scored < kept:
        raise ValueError(f"{what} scores {scored} ids by its token_map, and {kept} of {vocab} by truncated_vocab_size")
    scale = number(config, "logit_scale", 1.0, what) if layout == "vllm" else 1.0
    bias = layout == "medusa" or any(key.endswith(".bias") for key in headers if key.startswith("blocks."))
    agree(config, {"hidden_size": width, "medusa_fc_bias": bias}, what)
    config.settle(what, *OF_LAYERS)
    return MedusaSizes(
        units=heads,
        target_hidden=width,
        hidden=width,
        vocab=vocab,
        draft_vocab=kept if kept < vocab else scored,
        own_embedding=True,
        layers=blocks,
        bias=bias,
        one_output=one,
        own_output=not targets,
        pruned=kept < vocab,
        scale=scale,
    )


def _prune(weights: dict[str, Tensor], sizes: MedusaSizes, what: str) -> None:
    """Check the list of ids, and take their rows of output layers that have all of them."""
    ids = weights["token_map"] = weights["token_map"].long()
    if ids.shape != (sizes.draft_vocab,) or len(ids.unique()) != len(ids):
        raise ValueError(
            f"{what}: token_map lists {sizes.draft_vocab} different ids (truncated_vocab_size), not {list(ids.shape)}"
        )
    if int(ids.min()) < 0 or int(ids.max()) >= sizes.vocab:
        raise ValueError(f"{what}: token_map names id {int(ids.max())}, and the vocabulary has {sizes.vocab}")
    for key, rows in weights.items():
        if key.startswith("lm_heads.") and rows.shape[0] == sizes.vocab:
            weights[key] = rows[ids]


class Medusa(PathDrafter):
    """Drafts with Medusa's heads."""

    kind = "medusa"
    read = staticmethod(read_medusa)
