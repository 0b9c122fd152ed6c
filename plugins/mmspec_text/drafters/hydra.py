"""Drafts with Hydra's heads: one for each depth, which reads the target's last state and the drafted units before it.

Ankner et al., arXiv 2402.05109: head i is an MLP over the state before the root and the embeddings of the root and
of the i units drafted so far; so every node of a tree has a distribution of its own. Hydra++ reads all states
so far through one decoder layer, in place of the last one.
A checkpoint holds the MLPs and output layers of all heads, and Hydra++'s decoder layer; embeddings are the target's.
The paper's acceptance is lossy: the rule `typical`.

    head i: z = cat(f, E(root), E(unit 1), …, E(unit i)); x = R z + r + SiLU(W z + b); for every further block:
    x = x + SiLU(W x + b); logits of the unit i + 1 behind the root = O_i x

`f` is the feature; of Hydra++ it is what a decoder layer and a norm make of all features so far. The layout is the
authors' `hydra_lm_head`: `hydra_mlp.{head}.{block}.{linear,res_connection}.*`, `hydra_lm_head.{head}.*`. Hydra++
(`hydra_head_arch` is `prefix-mlp`) has dropout layers between blocks, which count, `hydra_lm_head.{head}.1.*`, and the
decoder layer `prefix_embeding_layer.*`, one of the target's kind: where its config has no `num_attention_heads`, as the
authors' has none, the target's config describes it.
Guarantee: drafts carry the distribution they are drawn from, or are point masses; exact under the rules that take the
form. Wrong heads are lossless too, and slow: the first call tries them on the prompt and warns (`Hydra.loaded`).
Knobs: `form` is the shape of the draft; a larger `width` and more `nodes` find more, and every node costs.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.core.protocols import Target
from mmspec.hosts.masks import PassGeometry
from mmspec.hosts.slot_cache import SlotCache
from mmspec.hosts.target import TransformersTarget
from mmspec_text.drafters.heads.entries import OF_LAYERS, Entries, agree, counted, part_numbers, positive, refuse_layers
from mmspec_text.drafters.heads.layers import BlockSizes, DecoderLayer, HeadNetwork, embedded
from mmspec_text.drafters.heads.pathwise.drafter import PathDrafter
from mmspec_text.drafters.heads.pathwise.head import PathCheckpoint, PathSizes
from mmspec_text.drafters.heads.stored import Stored, keys_of, stored_head


@dataclass(frozen=True)
class HydraSizes(PathSizes):
    """The shape of Hydra's heads."""

    # Numbers of a head's blocks in its checkpoint, where others are of layers without weights
    places: tuple[int, ...] = (0,)
    bias: bool = True  # whether output layers have a bias
    prefix: BlockSizes | None = None  # the decoder layer of Hydra++; None: Hydra


@dataclass(frozen=True)
class HydraCheckpoint(PathCheckpoint):
    """Hydra's heads as they are stored."""

    architecture: HydraSizes
    stored: Stored = field(kw_only=True)

    def beside(self, config: Mapping[str, Any]) -> "HydraCheckpoint":
        """These heads, whose decoder layer is one of a target with this config, if their own does not describe it."""
        if self.architecture.prefix is None or self.stored.config.get("num_attention_heads") is not None:
            return self
        refuse_layers(config, self.stored.what)
        prefix = BlockSizes.of(self.stored, "prefix.", config)
        return replace(self, architecture=replace(self.architecture, prefix=prefix))


class HydraNetwork(HeadNetwork):
    """See the module. It is a `PathHead`; a node's state is the feature and the embeddings of the path."""

    def __init__(self, a: HydraSizes, vocab: int) -> None:
        super().__init__(a.prefix)
        self.units, self.vocab = a.units, vocab
        width = a.target_hidden
        self.hydra_mlp = nn.ModuleList(
            nn.ModuleDict({str(place): Residual(width, head + 1 if place == a.places[0] else 0) for place in a.places})
            for head in range(a.units)
        )
        self.hydra_lm_head = nn.ModuleList(nn.Linear(width, a.draft_vocab, bias=a.bias) for _ in range(a.units))

    def rooted(self, features: Tensor, units: Tensor) -> Tensor:
        return self.followed(features.to(self.dtype), units, 0)

    def followed(self, states: Tensor, units: Tensor, depth: int) -> Tensor:
        return torch.cat([states, embedded(units, self.of_target(0), states.dtype)], -1)

    def logits(self, states: Tensor, depth: int = 0) -> Tensor:
        for block in self.hydra_mlp[depth].children():
            states = block(states)
        return self.over_target(self.hydra_lm_head[depth](states))


class PrefixHydraNetwork(HydraNetwork):
    """Hydra++: a `PrefixHead`, too."""

    depth = 1

    def __init__(self, a: HydraSizes, vocab: int) -> None:
        super().__init__(a, vocab)
        assert a.prefix is not None
        self.prefix = DecoderLayer(a.prefix)
        self.prefix_norm = nn.RMSNorm(a.target_hidden, a.prefix.eps)

    def taken_in(self, features: Tensor) -> Tensor:
        return features.to(self.dtype)

    def passed(self, units: Tensor, states: Tensor, slots: SlotCache, geometry: PassGeometry) -> Tensor:
        (kept,) = slots.layers
        angles = self._rotary[0](states, geometry.query)
        return self.rooted(self.prefix_norm(self.prefix(states, angles, geometry.tree, kept)), units)


class Residual(nn.Module):
    """A residual block; the first one of a head makes one state of several, `more` beside the first."""

    def __init__(self, width: int, more: int) -> None:
        super().__init__()
        self.linear = nn.Linear((1 + more) * width, width)
        self.res_connection = nn.Linear((1 + more) * width, width) if more else None

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x if self.res_connection is None else self.res_connection(x)
        return out + F.silu(self.linear(x))


def hydra_network(sizes: HydraSizes, vocab: int) -> HydraNetwork:
    """The network of either form."""
    return HydraNetwork(sizes, vocab) if sizes.prefix is None else PrefixHydraNetwork(sizes, vocab)


PREFIX_LAYER = "prefix_embeding_layer."  # the authors' spelling
FORMS = {
    "hydra": ("hydra_mlp.0.0.linear.weight", "hydra_lm_head.0.weight"),
    "hydra++": ("hydra_mlp.0.1.linear.weight", "hydra_lm_head.0.1.weight", f"{PREFIX_LAYER}norm.weight"),
}
"""Keys by which the two forms are known."""
PREFIX_FORM = re.compile(r"^(hydra_lm_head\.\d+\.1|prefix_embeding_layer)\.")
OUTER, OUTPUT = re.compile(r"^hydra_head\."), re.compile(r"^hydra_lm_head\.(\d+)\.1\.(weight|bias)$")


def canonical(key: str) -> str:
    """A checkpoint's key as the network names it."""
    key = OUTPUT.sub(r"hydra_lm_head.\1.\2", OUTER.sub("", key))
    key = key.replace(f"{PREFIX_LAYER}layers.0.", "prefix.")
    return key.replace(f"{PREFIX_LAYER}norm.", "prefix_norm.")


def read_hydra(name: str) -> HydraCheckpoint:
    """Read Hydra's heads from a folder or the hub."""
    leftovers = ("rotary_emb", f"{PREFIX_LAYER}embed_tokens.", "input_embed_fn.")  # the last one is the target's table
    stored = stored_head(name, "a Hydra", canonical, leftovers, ("hydra_lm_head",), inside=("hydra_head.",))
    keys = {OUTER.sub("", key) for key in stored.keys}
    form = "hydra++" if any(PREFIX_FORM.match(key) for key in keys) else "hydra"
    if any(key not in keys for key in FORMS[form][:2]):
        raise stored.no_layout({form: FORMS[form]}, keys)
    sizes = _sizes(stored, form)
    weights, ignored = stored.weights(keys_of(hydra_network, sizes))
    return HydraCheckpoint(name, form, sizes, hydra_network, weights, ignored, ("embed_tokens.weight",), stored=stored)


def _sizes(stored: Stored, form: str) -> HydraSizes:
    headers, what, unsaid = stored.headers, stored.what, None
    if form == "hydra++" and stored.config.get("num_attention_heads") is None:
        # A layer has the same tensors, however many heads it has: until a target says how many, as many as can be.
        unsaid = {"num_attention_heads": stored.matrix("prefix.self_attn.q_proj.weight")[0]}
    config = Entries(stored.config, unsaid)
    if config.get("hidden_state_offset"):
        raise ValueError(f"{what} reads an earlier state of the target (hidden_state_offset), which it is not given")
    first, step = (1, 2) if form == "hydra++" else (0, 1)
    heads = counted(part_numbers(headers, "hydra_mlp."), config, ("hydra_num_heads",), what)
    found = {(place - first) // step for place in part_numbers(headers, "hydra_mlp.", 2)}
    layers = counted(found, config, ("hydra_num_layers",), what)
    begin = f"hydra_mlp.0.{first}"
    width, inside = stored.matrix(f"{begin}.linear.weight")
    if inside != 2 * width:
        raise ValueError(f"{what}: {begin}.linear.weight reads no embedding, as with grounded_heads: false")
    rows = stored.matrix("hydra_lm_head.0.weight")[0]
    prefix = BlockSizes.of(stored, "prefix.", config) if form == "hydra++" else None
    if prefix is not None and prefix.hidden != width:
        raise ValueError(f"{what}: its decoder layer has states of {prefix.hidden} numbers, and its heads of {width}")
    agree(config, {"grounded_heads": True, "hydra_head_arch": "mlp" if prefix is None else "prefix-mlp"}, what)
    config.settle(what, *(OF_LAYERS if prefix is None else ("num_hidden_layers",)))
    return HydraSizes(
        units=heads,
        target_hidden=width,
        hidden=width,
        vocab=positive(config, "vocab_size", what) if config.get("vocab_size") is not None else rows,
        draft_vocab=rows,
        own_embedding=False,
        places=tuple(first + step * layer for layer in range(layers)),
        bias=any(key.startswith("hydra_lm_head.") and key.endswith(".bias") for key in headers),
        prefix=prefix,
    )


class Hydra(PathDrafter):
    """Drafts with Hydra's heads."""

    kind = "hydra"
    read = staticmethod(read_hydra)

    def wrap(self, target: Target) -> Target:
        if isinstance(self.checkpoint, HydraCheckpoint) and isinstance(target, TransformersTarget):
            self.checkpoint = self.checkpoint.beside(target.model_info.config.to_dict())
        return super().wrap(target)
