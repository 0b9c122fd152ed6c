"""The network of multi-token layers: a few own parts around a block of the target's class, for every depth.

Depth i predicts from the state that depth i - 1 had one unit before, and from the embedding of the unit between. So
a row of depth i exists for every unit whose predecessors' states exist: for known units of all depths, and for a
drafted unit, j units behind the last known one, of depth j and those behind. A row of a known unit never changes: no
depth ever holds keys of refused drafts. Beyond the last depth, the last one reads its own state: a single depth is
recycled as often as a draft is long.
"""

import inspect
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.core.distributions import take_nodes
from mmspec.hosts.devices import device_of
from mmspec.hosts.masks import PassGeometry
from mmspec.hosts.model_info import ModelInfo
from mmspec.hosts.slot_cache import SlotCache
from mmspec.hosts.weight_files import differences
from mmspec_text.drafters.heads.layers import HeadNetwork, embedded
from mmspec_text.drafters.heads.mtp.block import attention_kinds, filled_blocks
from mmspec_text.drafters.heads.mtp.checkpoint import MtpCheckpoint
from mmspec_text.drafters.heads.mtp.family import Family


class MtpNetwork(HeadNetwork):
    """See the module. It is a `Head`, whose states have one number more: how far behind the known units they are."""

    def __init__(self, checkpoint: MtpCheckpoint, model_info: ModelInfo) -> None:
        super().__init__()
        what = f"{checkpoint.name!r}"
        self.family, self.vocab = checkpoint.family, model_info.vocab
        self.kinds = attention_kinds(model_info, checkpoint.family.attention, checkpoint.depths)
        self.window = getattr(model_info.config, "sliding_window", None)
        blocks = filled_blocks(model_info, self.family, self.kinds, checkpoint.blocks, checkpoint.originals, what)
        biased = "layers.0.projection.bias" in checkpoint.own
        table = checkpoint.own.get("layers.0.embedding.weight")
        hidden, eps = model_info.config.hidden_size, getattr(model_info.config, self.family.eps)
        rows = None if table is None else len(table)
        self._depths = [Depth(block, self.family, hidden, eps, biased, rows) for block in blocks]
        self.layers = nn.ModuleList(self._depths)
        self._fill(checkpoint, what)
        # Beside the keys of every depth, a cache keeps the states that the next depth reads.
        self.depth = 2 * checkpoint.depths - 1
        self._positions_by_kind = False

    def join_model(self, model_info: ModelInfo) -> None:
        """Go where the target is, and use its embedding, output and rotary layers."""
        model = model_info.model
        self.to(device_of(model))
        for weight in self.parameters():  # buffers, such as corrections of a router, keep their dtype
            weight.data = weight.data.to(model.dtype)
        self._shared = model.get_input_embeddings(), model.get_output_embeddings()
        if self.trimmed is not None:
            self.trimmed.take(self.of_target(1))
        if self.family.rotary:
            rotary = model_info.language.decoder.get_submodule("rotary_emb")
            self._positions_by_kind = "layer_type" in inspect.signature(type(rotary).forward).parameters
            self._shared = *self._shared, rotary

    def taken_in(self, features: Tensor) -> Tensor:
        return F.pad(features.to(self.dtype), (0, 1))  # 0 behind the known units

    def passed(self, units: Tensor, states: Tensor, slots: SlotCache, geometry: PassGeometry) -> Tensor:
        states, behind = states[..., :-1], states[..., -1:]
        inputs = self._embedded(units, geometry)
        out = before = states
        for number, layer in enumerate(self._depths):
            own = behind >= number  # rows that read what they were given; of more than one depth, the last one counts
            read = torch.where(own, states, before)
            result = layer.normed(self._run(number, layer.joined(inputs, read), slots, geometry))
            out = torch.where(own, result, out)
            if number < len(self._depths) - 1:
                before = self._of_parents(result, slots.layers[len(self._depths) + number], geometry)
        return torch.cat([out, behind + 1], -1)

    def logits(self, states: Tensor) -> Tensor:
        return self.over_target(self.output()(states[..., :-1]))

    def _run(self, number: int, x: Tensor, slots: SlotCache, geometry: PassGeometry) -> Tensor:
        """The block of a depth; a row has the position of its unit, one ahead of its state."""
        positions = geometry.query + 1
        kind = (self.kinds[number],) if self._positions_by_kind else ()
        turns = {"position_embeddings": self.of_target(2)(x, positions, *kind)} if self.family.rotary else {}
        result = self._depths[number].block(
            x,
            attention_mask=self._mask(number, geometry),
            position_ids=positions,
            past_key_values=slots,
            use_cache=True,
            **turns,
        )
        out: Tensor = result if isinstance(result, Tensor) else result[0]
        return out

    def _mask(self, number: int, geometry: PassGeometry) -> Tensor:
        """`[batch, 1, row, slot]` bool: what a row of a depth sees. The first rows of a text have no deeper ones."""
        window = self.window if self.kinds[number] == "sliding_attention" else None
        if window is None and number == 0:
            return geometry.tree

        def near(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            seen = (key >= number) | (key == query)  # itself, so that no row sees nothing
            return seen if window is None else seen & (query - key < window)

        return geometry.within(near)

    def _of_parents(self, states: Tensor, kept: Any, geometry: PassGeometry) -> Tensor:
        """Keep states `[batch, row, hidden]` in the cache, and return the states of the rows' predecessors."""
        stored, _ = kept.update(states[:, None], states[:, None, :, :0])
        nodes, batch = states.shape[1], len(states)
        depth = geometry.depth.expand(batch, -1)
        own = depth[:, depth.shape[1] - nodes :, None]
        parent = (geometry.ancestor.expand(batch, -1, -1) & (depth[:, None] == own - 1)).int().argmax(-1)
        place = torch.where(own[..., 0] == 0, -1, parent) + geometry.length[:, None]
        return take_nodes(stored[:, 0], place.clamp(min=0))

    def _embedded(self, units: Tensor, geometry: PassGeometry) -> Tensor:
        own = self._depths[0].embedding
        inputs = embedded(units, self.of_target(0) if own is None else own, self.dtype)
        return inputs * (geometry.query > 0)[..., None] if self.family.zeroed else inputs

    def _fill(self, checkpoint: MtpCheckpoint, what: str) -> None:
        wanted = {key: value for key, value in self.state_dict().items() if ".block." not in key}
        other = [
            f"{key}: {list(checkpoint.own[key].shape)}, not {list(value.shape)}"
            for key, value in wanted.items()
            if key in checkpoint.own and checkpoint.own[key].shape != value.shape
        ]
        if wrong := differences(missing=wanted.keys() - checkpoint.own.keys(), of_another_shape=other):
            raise ValueError(f"the multi-token layers of {what} (family {self.family.name}) do not fit: {wrong}")
        self.load_state_dict(dict(checkpoint.own), strict=False, assign=True)
        self.eval().requires_grad_(False)


class Depth(nn.Module):
    """One depth: norms of embedding and state, their projection, a block, and the norm behind it.

    An embedding of its own has so many `rows`; None: it has none.
    """

    def __init__(
        self, block: nn.Module, family: Family, hidden: int, eps: float, biased: bool, rows: int | None = None
    ) -> None:
        super().__init__()
        kind: Any = type(block.get_submodule(family.norm))
        self.hidden_first = family.hidden_first
        with torch.device("meta"):
            self.embedding_norm, self.hidden_norm = kind(hidden, eps=eps), kind(hidden, eps=eps)
            self.projection = nn.Linear(2 * hidden, hidden, bias=biased)
            self.final_norm = None if family.final_norm is None else kind(hidden, eps=eps)
            self.embedding = None if rows is None else nn.Embedding(rows, hidden)
        self.block = block

    def joined(self, embedded: Tensor, states: Tensor) -> Tensor:
        """The input of the block: `[batch, row, hidden]`."""
        parts = [self.embedding_norm(embedded), self.hidden_norm(states)]
        out: Tensor = self.projection(torch.cat(parts[::-1] if self.hidden_first else parts, -1))
        return out

    def normed(self, states: Tensor) -> Tensor:
        """States that are scored and fed back, of those that the block returned."""
        return states if self.final_norm is None else self.final_norm(states)
