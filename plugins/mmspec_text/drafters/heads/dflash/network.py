"""The network of a DFlash head, driven by its `DFlashArchitecture`.

    c = norm(fc(feature)) for every known unit before the root: each layer computes its keys and values from c
    rows [E(root), E(mask), …, E(mask)] see all c and one another; logits of a unit = head(norm(its row))

The known rows pass through no layer, so that reading them costs two projections a layer. Names of parameters are the
keys of checkpoints. The embedding and the output layer of the target are used where the checkpoint has none.

DSpark's Markov head is a term of the logits that depends on the unit before (arXiv 2607.05147, eq. 5 and 6).

    vanilla: w2 e;   gated: w2 (sigmoid(gate [h, e]) e);   e = w1[unit before], h = the block's state
    rnn: g, c, o = joint [s, e, h];  s' = sigmoid(g) s + (1 - sigmoid(g)) tanh(c);  term: w2 tanh(o)

Domino's correction (arXiv 2605.29707) depends on all units before: w2 silu(w1 [h, s]), where s is the state of a GRU
without biases that has read the embeddings from the root on.

DFlash2 convolves what enters and what leaves attention and MLP of every layer, within the block: a row is weighted with
the rows before it, number by number (`base_kernel`), and group by group as the row that enters says
(`kernel_projection`). Its selector keeps the likeliest candidates c of every depth, and adds (e p)·s: p is the
predecessor code of the unit before, s the successor code of c, e a projection of h.

DSpark's confidence head guesses whether the target accepts a unit, before it is drawn: sigmoid(w h + b), or of [h, e].
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.core.tree import TreeIndex
from mmspec.hosts.masks import PassGeometry
from mmspec.hosts.slot_cache import SlotCache
from mmspec_text.drafters.heads.block import Confidence, Sequel
from mmspec_text.drafters.heads.dflash.family import DFlashArchitecture, Sight
from mmspec_text.drafters.heads.layers import DecoderLayer, HeadNetwork, embedded, looked_up


class DFlashNetwork(HeadNetwork):
    """See the module. It is a `Scorer`."""

    def __init__(self, architecture: DFlashArchitecture, vocab: int) -> None:
        super().__init__(architecture)
        a = self.architecture = architecture
        self.depth, self.vocab = len(a.sights), vocab
        self.fc = nn.Linear(a.features * a.target_hidden, a.hidden, bias="fc" in a.biases)
        self.hidden_norm = nn.RMSNorm(a.hidden, a.eps)
        self.layers = nn.ModuleList(ConvolvedLayer(a) if a.taps else DecoderLayer(a, a.sinks) for _ in a.sights)
        self.norm = nn.RMSNorm(a.hidden, a.eps)
        self.embed_tokens = nn.Embedding(a.vocab, a.hidden) if a.own_embedding else None
        self.lm_head = nn.Linear(a.hidden, a.draft_vocab, bias=False) if a.own_output else None
        self.mask_embedding = nn.Parameter(torch.empty(a.hidden)) if a.own_mask else None
        self.markov_head = Markov(a) if a.sequel is not None else None
        self.confidence_head = nn.ModuleDict({"proj": nn.Linear(a.confidence, 1)}) if a.confidence else None
        self.prefix_gru = Cell(a.hidden, a.gru) if a.gru else None
        sizes = (nn.Linear(a.hidden + a.gru, a.inside, bias=False), nn.Linear(a.inside, a.draft_vocab, bias=False))
        self.embed_proj = nn.Sequential(sizes[0], nn.SiLU(), sizes[1]) if a.gru else None
        self.candidate_selector = Selector(a) if a.candidates else None
        self.guesses = False  # whether anybody asks for the confidence head's guesses

    def absorb(self, features: Tensor, slots: SlotCache, positions: Tensor) -> None:
        """Put the keys and values of features `[batch, row, width]` at positions `[batch, row]` into the open slots."""
        known = self.hidden_norm(self.fc(features.to(self.dtype)))
        behind = positions[:, -1:] + self.architecture.block  # the authors' pass has the block, too
        angles = tuple(part[:, :-1] for part in self._rotary[0](known, torch.cat([positions, behind], 1)))
        for layer, kept in zip(self.layers, slots.layers, strict=True):
            assert isinstance(layer, DecoderLayer)
            layer.self_attn.keep(known, angles, kept)

    def block(self, root: Tensor, slots: SlotCache) -> Tensor:
        """The states of a block behind the known rows, one for each of its units: `[batch, unit, hidden]`.

        `root` is `[batch]` int64. The block's rows are not committed.
        """
        slots.open(0, self.architecture.block)
        chain = TreeIndex.chain(self.architecture.block, root.device)
        every = torch.ones_like(chain.ancestor)
        geometry = [PassGeometry(slots.length, seen, chain.depth, slots.visible) for seen in (every, chain.ancestor)]
        end = slots.length[:, None, None, None]
        return self.blocks(root[:, None], geometry, end, slots)[:, 0]

    def blocks(self, roots: Tensor, geometry: Sequence[PassGeometry], end: Tensor, slots: SlotCache) -> Tensor:
        """The states of several blocks in one pass, one for each of their units: `[batch, root, unit, hidden]`.

        `geometry` has the rows of all blocks, each of which sees all of its block, and what it sees before it; `end` is
        the position of every row's root, `[batch, 1, row, 1]` or `[batch, 1, 1, 1]`; `slots` are opened for these rows.
        """
        a = self.architecture
        masks = {sight: _mask(sight, geometry[sight.causal], end) for sight in a.sights}
        states = self._rows(roots)
        angles = self._rotary[0](states, geometry[0].query)
        for layer, sight, kept in zip(self.layers, a.sights, slots.layers, strict=True):
            states = layer(states, angles, masks[sight], kept)
        normed: Tensor = self.norm(states)
        return normed.unflatten(1, (-1, a.block))[:, :, a.block - a.units :]

    def scored(self, states: Tensor) -> Tensor:
        logits: Tensor = self.output(self.lm_head)(states)
        logits = logits[..., : self.architecture.draft_vocab] * self.architecture.scale  # rows behind it are padding
        cap = self.architecture.softcap
        return logits if cap is None else cap * (logits / cap).tanh()

    @property
    def sequel(self) -> Sequel | None:
        """The Markov head, Domino's correction, or DFlash2's selector."""
        head: Sequel | None = self.markov_head if self.candidate_selector is None else self.candidate_selector
        head = head if self.prefix_gru is None else self._corrected
        return head if head is None or self.trimmed is None else partial(self._of_kept, head)

    @property
    def confidence(self) -> Confidence | None:
        """The confidence head, where somebody asks for its guesses."""
        return self._confidence if self.guesses else None

    def _of_kept(
        self, head: Sequel, scored: Tensor, units: Tensor, states: Tensor, above: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """As `Sequel`, where only some ids of the head's are scored: the others are for it as if they never came."""
        assert self.trimmed is not None
        ids = self.architecture.draft_vocab
        whole = scored.new_full((*scored.shape[:2], ids), -torch.inf).index_copy(-1, self.trimmed.rows, scored)
        new, carried = head(whole, units, states, above)
        return new[..., self.trimmed.rows], carried

    def _corrected(self, scored: Tensor, units: Tensor, states: Tensor, above: Tensor | None) -> tuple[Tensor, Tensor]:
        """As `Sequel`; what children need is the GRU's state, and how deep it is."""
        assert self.prefix_gru is not None and self.embed_proj is not None
        x = self._embedded(units)
        above = x.new_zeros(*units.shape, self.architecture.gru + 1) if above is None else above
        before, depth = above[..., :-1], above[..., -1:]
        now = self.prefix_gru(x, before)
        term: Tensor = self.embed_proj(torch.cat([states, now], -1))[..., : scored.shape[-1]]
        late = depth >= self.architecture.uncorrected
        return torch.where(late, scored + term, scored), torch.cat([now, depth + 1], -1)

    def _confidence(self, states: Tensor, units: Tensor) -> Tensor:
        assert self.confidence_head is not None
        if self.architecture.confidence > self.architecture.hidden and self.markov_head is not None:
            states = torch.cat([states, F.embedding(units, self.markov_head.markov_w1.weight)], -1)
        guess: Tensor = self.confidence_head["proj"](states)
        return guess[..., 0].float().sigmoid()

    def _embedded(self, units: Tensor) -> Tensor:
        table = self.embed_tokens if self.embed_tokens is not None else self.of_target(0)
        scale = self.architecture.embedding_scale
        return embedded(units, table, self.dtype) if scale is None else looked_up(units, table, self.dtype) * scale

    def _rows(self, roots: Tensor) -> Tensor:
        """The input of the first layer, block after block: `[batch, row, hidden]`."""
        masked: Tensor | None = self.mask_embedding
        if masked is None:
            unknown = torch.full_like(roots[:1, :1], self.architecture.mask_token or 0)
            masked = self._embedded(unknown)[0, 0]
        first = self._embedded(roots)[:, :, None]
        others = masked.to(roots.device, self.dtype).expand(*roots.shape, self.architecture.block - 1, -1)
        return torch.cat([first, others], 2).flatten(1, 2)


def _mask(sight: Sight, geometry: PassGeometry, end: Tensor) -> Tensor:
    """`[batch, 1, row, slot]` bool: what the rows of blocks see, whose roots are at `end`."""
    window = sight.window
    if window is None:
        return geometry.tree

    def near(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return key >= end - window if sight.from_root else query - key < window

    return geometry.within(near)


class Markov(nn.Module):
    """See the module."""

    def __init__(self, a: DFlashArchitecture) -> None:
        super().__init__()
        self.kind, self.rank = a.sequel, a.rank
        self.markov_w1 = nn.Embedding(a.vocab, a.rank)
        self.markov_w2 = nn.Linear(a.rank, a.draft_vocab, bias=False)
        if a.sequel == "gated":
            self.gate_proj = nn.Linear(a.hidden + a.rank, a.rank)
        if a.sequel == "rnn":
            self.joint_proj = nn.Linear(2 * a.rank + a.hidden, 3 * a.rank)

    def forward(self, scored: Tensor, units: Tensor, states: Tensor, above: Tensor | None) -> tuple[Tensor, Tensor]:
        """As `Sequel`; what children need is the recurrent state, which has no width but for `rnn`."""
        before = F.embedding(units, self.markov_w1.weight)
        if self.kind == "rnn":
            above = torch.zeros_like(before) if above is None else above
            gate, new, out = self.joint_proj(torch.cat([above, before, states], -1)).chunk(3, -1)
            gate = gate.sigmoid()
            return self._added(scored, out.tanh()), gate * above + (1 - gate) * new.tanh()
        if self.kind == "gated":
            before = self.gate_proj(torch.cat([states, before], -1)).sigmoid() * before
        return self._added(scored, before), before[..., :0]

    def _added(self, scored: Tensor, state: Tensor) -> Tensor:
        """Logits with the term; the target's output layer may have fewer rows than the head."""
        term: Tensor = self.markov_w2(state)
        return scored + term[..., : scored.shape[-1]]


class Selector(nn.Module):
    """DFlash2's; see the module."""

    def __init__(self, a: DFlashArchitecture) -> None:
        super().__init__()
        self.candidates = a.candidates
        self.predecessor_codebook = nn.Parameter(torch.empty(a.vocab, a.rank))
        self.successor_codebook = nn.Parameter(torch.empty(a.draft_vocab, a.rank))
        self.hidden_projection = nn.Linear(a.hidden, a.rank, bias=False)

    def forward(self, scored: Tensor, units: Tensor, states: Tensor, above: Tensor | None) -> tuple[Tensor, Tensor]:
        """As `Sequel`; children need nothing."""
        best, ids = scored.topk(min(self.candidates, scored.shape[-1]), -1)
        code = F.embedding(units, self.predecessor_codebook) * self.hidden_projection(states)
        term = (self.successor_codebook[ids] @ code[..., None])[..., 0]
        return torch.full_like(scored, -torch.inf).scatter(-1, ids, best + term), code[..., :0]


class Convolution(nn.Module):
    """DFlash2's, over the rows of a block; see the module."""

    def __init__(self, a: DFlashArchitecture) -> None:
        super().__init__()
        self.block, self.taps, self.groups = a.block, a.taps, a.groups
        self.base_kernel = nn.Parameter(torch.empty(2, a.taps, a.hidden))
        self.kernel_projection = nn.Linear(a.hidden, 2 * a.taps * a.groups, bias=False)

    def entered(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """The input of a part of a layer, `[batch, row, hidden]`, and the kernels for what leaves it."""
        first, second = self.kernel_projection(states).chunk(2, -1)
        return self.convolved(states, first, 0), second

    def convolved(self, states: Tensor, kernels: Tensor, side: int) -> Tensor:
        """States of whole blocks, with kernels `[batch, row, taps · groups]`; 1 is the side that leaves."""
        rows = states.unflatten(1, (-1, self.block))
        own = kernels.unflatten(1, (-1, self.block)).unflatten(-1, (self.taps, self.groups, 1))
        weights = self.base_kernel[side].unflatten(-1, (self.groups, -1)) + own  # [batch, root, row, tap, group, …]
        later = [F.pad(rows, (0, 0, tap, 0))[:, :, : self.block] for tap in range(self.taps)]
        taken = torch.stack(later, 3).unflatten(-1, (self.groups, -1))
        return (weights * taken).sum(3).flatten(3).flatten(1, 2)


class ConvolvedLayer(DecoderLayer):
    """A decoder layer of DFlash2."""

    def __init__(self, a: DFlashArchitecture) -> None:
        super().__init__(a, a.sinks)
        self.attention_conv, self.mlp_conv = Convolution(a), Convolution(a)

    def forward(self, states: Tensor, angles: Any, mask: Tensor, kept: Any) -> Tensor:
        read, kernels = self.attention_conv.entered(self.input_layernorm(states))
        states = states + self.attention_conv.convolved(self.self_attn(read, angles, mask, kept), kernels, 1)
        read, kernels = self.mlp_conv.entered(self.post_attention_layernorm(states))
        return states + self.mlp_conv.convolved(self.mlp(read), kernels, 1)


class Cell(nn.Module):
    """One step of a GRU; parameters have the names that torch's GRU gives them, which torch cannot trace."""

    def __init__(self, inside: int, hidden: int) -> None:
        super().__init__()
        self.weight_ih_l0 = nn.Parameter(torch.empty(3 * hidden, inside))
        self.weight_hh_l0 = nn.Parameter(torch.empty(3 * hidden, hidden))

    def forward(self, x: Tensor, before: Tensor) -> Tensor:
        """The states `[batch, node, hidden]` behind inputs `[batch, node, inside]` and states."""
        read, kept = F.linear(x, self.weight_ih_l0).chunk(3, -1), F.linear(before, self.weight_hh_l0).chunk(3, -1)
        reset, update = ((one + other).sigmoid() for one, other in zip(read[:2], kept[:2], strict=True))
        return (1 - update) * (read[2] + reset * kept[2]).tanh() + update * before
