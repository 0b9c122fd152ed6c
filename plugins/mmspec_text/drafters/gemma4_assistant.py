"""Drafts of a Gemma 4 assistant: a small decoder without keys of its own, which attends to those of its target.

The assistants are Google's, and their layers are transformers' own. A row joins the embedding of a unit, by the
target's table, and a state: behind the root the target's last one at the unit before it, behind a drafted unit the one
that the assistant projects back at its parent. Layers have queries alone, and read the keys of the target's last layer
of their kind, over all known units but the root. No drafted unit has keys, and all ask from the root's position; so the
nodes of a tree are rows that do not see each other. A large vocabulary may be scored in part, by the likeliest clusters
of ids.
Guarantee: drafts carry the distribution they are drawn from, or are point masses; exact under the rules that take the
form.
Knobs: `form` is the shape of the draft; the assistant runs once a level, over all nodes of it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import Gemma4TextConfig, Gemma4TextModel, Gemma4UnifiedTextConfig, Gemma4UnifiedTextModel

from mmspec.core.hidden import FINAL
from mmspec.core.protocols import Target
from mmspec.core.state import State
from mmspec.core.types import TargetOutput
from mmspec.hosts.attention import tree_attention
from mmspec.hosts.slot_cache import SlotCache
from mmspec.hosts.target import TransformersTarget
from mmspec.kits.text.tree_form import TreeForm
from mmspec.registry.options import option
from mmspec.registry.printable import shown
from mmspec_text.drafters.heads.cache import Feed
from mmspec_text.drafters.heads.drafter import GrowingDrafter
from mmspec_text.drafters.heads.entries import positive
from mmspec_text.drafters.heads.layers import embedded
from mmspec_text.drafters.heads.memory import of_prompt
from mmspec_text.drafters.heads.pathwise.drafter import Last
from mmspec_text.drafters.heads.stored import fitted, stored_head
from mmspec_text.drafters.heads.vocabulary import over_target

KINDS = ("gemma4_assistant", "gemma4_unified_assistant")
"""The assistants' model types in transformers."""
SLIDING = "sliding_attention"
TABLE, ORDER = "model.embed_tokens.weight", "masked_embedding.token_ordering"


def is_assistant(config: Mapping[str, Any], keys: Iterable[str]) -> bool:
    """True if a stored model is such an assistant."""
    return config.get("model_type") in KINDS


@dataclass(frozen=True)
class AssistantOptions(TreeForm):
    """Options of `gemma4-assistant`."""

    model: Any = option(None, "the assistant: a folder or a hub name")


class AllShared:
    """A config none of whose layers has keys, which transformers 5.23 refuses for these models."""

    num_hidden_layers: int

    @property
    def kv_sharing_modes(self) -> list[str]:
        return ["reuse"] * self.num_hidden_layers


class TextConfig(AllShared, Gemma4TextConfig):
    """Of the assistants of most sizes."""


class UnifiedTextConfig(AllShared, Gemma4UnifiedTextConfig):
    """Of those of the unified models."""


LAYERS = {
    "gemma4_text": (TextConfig, Gemma4TextModel),
    "gemma4_unified_text": (UnifiedTextConfig, Gemma4UnifiedTextModel),
}
"""By the type of the text config: its class, and that of the layers."""


@dataclass(frozen=True)
class Assistant:
    """An assistant as it is stored."""

    name: str  # where it is from, for messages
    text: Any  # the config of its layers
    backbone: int  # numbers of the target's states
    clusters: tuple[int, int] | None  # clusters of ids, and how many are scored; None: all ids are
    weights: Mapping[str, Tensor]

    def network(self) -> "Network":
        """The assistant."""
        with torch.device("meta"):
            made = Network(self)
        made = fitted(made, self.weights, f"the assistant {self.name!r}", "transformers")
        made.model.rotary_emb = type(made.model.rotary_emb)(self.text)  # whose frequencies no file has
        return made


def read_assistant(name: str) -> Assistant:
    """Read an assistant from a folder or the hub."""
    stored = stored_head(name, "a Gemma 4 assistant's", lambda key: key, integers=(ORDER,))
    config, what = stored.config, stored.what
    text = config.get("text_config")
    kind = text.get("model_type") if isinstance(text, Mapping) else None
    if config.get("model_type") not in KINDS or kind not in LAYERS:
        raise ValueError(f"{what} is no assistant of Gemma 4: its config has no model_type {' or '.join(KINDS)}")
    assert isinstance(text, Mapping)
    try:
        sizes: Any = LAYERS[kind][0](**text)
    except Exception as error:  # transformers checks entries with classes of errors of its own
        raise ValueError(f"{what}: its text_config is none of a Gemma 4 ({shown(str(error))})") from error
    names = ("num_centroids", "centroid_intermediate_top_k")
    clusters = tuple(positive(config, part, what) for part in names) if config.get("use_ordered_embeddings") else None
    if clusters and (sizes.vocab_size % clusters[0] or clusters[1] > clusters[0]):
        raise ValueError(
            f"{what}: {sizes.vocab_size} ids are no {clusters[0]} equal clusters, of which {clusters[1]} count"
        )
    found = Assistant(name, sizes, positive(config, "backbone_hidden_size", what), clusters, {})  # type: ignore[arg-type]
    with torch.device("meta"):
        wanted = Network(found).state_dict().keys()
    weights, _ = stored.weights(wanted, {"lm_head.weight": TABLE})
    return replace(found, weights=weights)


class Clusters(nn.Module):
    """Logits of the ids of the likeliest clusters."""

    token_ordering: Tensor  # `[vocab]`: the ids, cluster by cluster

    def __init__(self, hidden: int, vocab: int, count: int, most: int) -> None:
        super().__init__()
        self.most, self.vocab = most, vocab
        self.centroids = nn.Linear(hidden, count, bias=False)
        self.register_buffer("token_ordering", torch.empty(vocab, dtype=torch.int64))

    def forward(self, states: Tensor, table: Tensor) -> Tensor:
        """`[batch, node, vocab]`, -inf elsewhere, of states and the output layer `[vocab, hidden]`."""
        chosen = self.centroids(states).topk(self.most, -1).indices
        ids = self.token_ordering.long().view(self.centroids.out_features, -1)[chosen].flatten(2)
        scored = (table[ids] @ states[..., None])[..., 0]
        return states.new_full((*states.shape[:2], self.vocab), -torch.inf).scatter(-1, ids, scored)


class Network(nn.Module):
    """An assistant; names of parameters are the keys of its files."""

    def __init__(self, a: Assistant) -> None:
        super().__init__()
        hidden, vocab = a.text.hidden_size, a.text.vocab_size
        self.model: Any = LAYERS[a.text.model_type][1](a.text)
        self.model.embed_tokens = nn.Embedding(vocab, hidden)  # the output layer, too
        self.pre_projection = nn.Linear(2 * a.backbone, hidden, bias=False)
        self.post_projection = nn.Linear(hidden, a.backbone, bias=False)
        self.masked_embedding = None if a.clusters is None else Clusters(hidden, vocab, *a.clusters)

    def place(self, device: torch.device, dtype: torch.dtype) -> None:
        """Go where the target is; rotary frequencies stay in float32."""
        self.to(device)
        for tensor in self.state_dict(keep_vars=True).values():
            if tensor.is_floating_point():
                tensor.data = tensor.data.to(dtype)

    def logits(self, states: Tensor) -> Tensor:
        """`[batch, node, vocab]` of states of its last layer, normalised."""
        table: Tensor = self.model.embed_tokens.weight
        return F.linear(states, table) if self.masked_embedding is None else self.masked_embedding(states, table)


@dataclass(frozen=True)
class Lookup:
    """The part of its target that one draft may read."""

    keys: Mapping[str, tuple[Tensor, Tensor]]  # by kind of layer: keys and values, `[batch, key heads, slot, width]`
    seen: Mapping[str, Tensor]  # by kind of layer: which slots hold known units, `[batch, 1, 1, slot]` bool
    position: Tensor  # `[batch, 1]` int64: of the root

    @classmethod
    def of(cls, slots: SlotCache, layers: Mapping[str, int], window: int, like: Tensor) -> "Lookup":
        """Read a call's cache between two rounds, with all but the root, for a tensor of the assistant's `like` that.

        `layers` are the target's by their kind; layers with a window reach `window` units behind the latest known one.
        """
        length, keys, seen = slots.length[:, None], {}, {}
        for kind, number in layers.items():
            layer: Any = slots.layers[number]
            if kind == SLIDING:  # its keys may be in a ring
                at = length - 1 - torch.arange(window + 1, device=length.device)
                both, inside = layer.read(at.clamp(min=0)), at >= 0
            else:
                visible = min(slots.visible, layer.places)
                at = torch.arange(visible, device=length.device).expand(len(length), -1)
                both, inside = (part.narrow(2, 0, visible) for part in (layer.keys, layer.values)), at < length
            if slots.holes is not None:
                inside = inside & ~slots.holes.gather(1, at.clamp(min=0))
            held, values = (part.to(like.device, like.dtype) for part in both)
            keys[kind], seen[kind] = (held, values), inside[:, None, None].to(like.device)
        return cls(keys, seen, (length[:, 0] + slots.shift)[:, None].to(like.device))


class Asking:
    """An assistant in one call, a `PathHead`: a node's state is the assistant's, before it is projected back."""

    borrowed = ()
    units = 0  # paths may have any length

    def __init__(self, network: Network, embedding: nn.Module, vocab: int) -> None:
        self.network, self.embedding, self.vocab = network, embedding, vocab
        self.lookup: Lookup | None = None  # of the present draft

    def rooted(self, features: Tensor, units: Tensor) -> Tensor:
        network, lookup, nodes = self.network, self.lookup, units.shape[1]
        assert lookup is not None
        weight = network.pre_projection.weight
        row = embedded(units, self.embedding, weight.dtype).to(weight.device)
        with tree_attention(network.model.config):
            made = network.model(
                inputs_embeds=network.pre_projection(torch.cat([row, features.to(row)], -1)),
                attention_mask={kind: mask.expand(-1, -1, nodes, -1) for kind, mask in lookup.seen.items()},
                position_ids=lookup.position.expand(-1, nodes),
                shared_kv_states=dict(lookup.keys),
                use_cache=False,
                logits_to_keep=torch.arange(nodes, device=row.device),  # a number, 0 too, would slice ids
            )
        states: Tensor = made.last_hidden_state
        return states

    def followed(self, states: Tensor, units: Tensor, depth: int) -> Tensor:
        return self.rooted(self.network.post_projection(states), units)

    def logits(self, states: Tensor, depth: int = 0) -> Tensor:
        return over_target(self.network.logits(states), None, self.vocab)


@dataclass
class AskingMemory(Last):
    """The last feature, and which of the target's keys are read."""

    head: Asking
    layers: Mapping[str, int]  # the target's layers, by their kind
    window: int  # as in `Lookup.of`

    def opened(self, known: Any) -> tuple[TargetOutput, Feed]:
        like = self.head.network.pre_projection.weight
        self.head.lookup = Lookup.of(known.cache.slots, self.layers, self.window, like)
        return super().opened(known)


class Gemma4Assistant(GrowingDrafter):
    """Drafts with an assistant."""

    runs_target = True  # its passes attend over the target's keys

    def __init__(self, options: AssistantOptions = AssistantOptions()) -> None:
        super().__init__(options)
        if options.model is None:
            raise ValueError("gemma4-assistant needs an assistant: drafter=<folder or hub name>, or the option model=")
        found = read_assistant(options.model) if isinstance(options.model, str) else options.model
        if not isinstance(found, Assistant):
            raise TypeError(f"the assistant is a folder or a hub name, not {type(found).__name__}")
        self.checkpoint = found
        self.network = found.network()

    def wrap(self, target: Target) -> Target:
        """The target, with its last states."""
        own, name = self.checkpoint, f"the assistant {self.checkpoint.name!r}"
        if not isinstance(target, TransformersTarget) or not target.model_info.config.model_type.startswith("gemma4"):
            raise ValueError(f"{name} reads the keys of a Gemma 4, and {type(target).__name__} has none of these")
        its, text = target.model_info.config, own.text
        if (own.backbone, text.vocab_size) != (its.hidden_size, its.vocab_size):
            raise ValueError(
                f"{name} reads states of {own.backbone} numbers and {text.vocab_size} ids, and the target has "
                f"{its.hidden_size} and {its.vocab_size}: it is the assistant of another target"
            )
        self._layers = {kind: last_of(its, kind) for kind in dict.fromkeys(text.layer_types)}
        for number, kind in enumerate(text.layer_types):
            mine, other = text.per_layer_config[number], its.per_layer_config[self._layers[kind]]
            if mine.head_dim != other.head_dim or text.num_attention_heads % other.num_key_value_heads:
                raise ValueError(
                    f"layer {number} of {name} has {text.num_attention_heads} heads of {mine.head_dim} numbers, and "
                    f"the target's keys are {other.num_key_value_heads} of {other.head_dim}"
                )
        return target.with_hidden((FINAL,))

    def bind(self, target: Target) -> None:
        assert isinstance(target, TransformersTarget) and target.vocab is not None
        self._target, self._vocab = target, target.vocab
        if self.shape.widest > self._vocab:
            raise ValueError(f"{self.shape} wants {self.shape.widest} siblings, and there are {self._vocab} ids")

    def start(self, state: State, inputs: Any) -> AskingMemory:
        if state.cache.guided:
            raise ValueError("an assistant reads one set of keys a row, and under guidance there are two")
        lent = self._target.lend()
        self.network.place(lent.device, lent.dtype)
        head = Asking(self.network, lent.embedding, self._vocab)
        return AskingMemory(head, of_prompt(state).features[:, -1:], self._layers, self.checkpoint.text.sliding_window)


def last_of(config: Any, kind: str) -> int:
    """The last layer of a kind that has keys of its own."""
    own = config.layer_types[: config.num_hidden_layers - (config.num_kv_shared_layers or 0)]
    if kind not in own:
        raise ValueError(f"the assistant has layers of {kind}, and no layer of the target has keys of that kind")
    return len(own) - 1 - own[::-1].index(kind)
