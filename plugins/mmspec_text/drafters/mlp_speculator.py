"""Drafts with an MLP or LSTM speculator: a state into which every drafted unit is folded.

Wertheimer et al., arXiv 2404.19124: the target's last state is projected, the root's embedding is added, and the sum is
normalised and activated; the result predicts the next unit, whose embedding is folded in likewise, for as many units as
there are heads. Published speculators of IBM and others have the layout of fms-extras.
A checkpoint holds embeddings, projections, norms and output layers of all depths, which may be tied.

The LSTM speculators of Arctic Inference (Snowflake, https://github.com/snowflakedb/ArcticInference) add gates and a
cell: the state and one embedding of the last unit give the gates of an LSTM and the new value of its cell (`sum_lstm`).
A checkpoint holds two projections, one embedding, two norms and one output layer, which serve all depths.

    both:  w_s = 0.5^(0.5 / n), w_e = sqrt((1 - w_s²) d / 2); s = h, or h / rms(h) / √2 if the input is scaled
    MLP:   s = GELU(norm_i(w_s P_i s + w_e E_i(unit))); logits = H_i s
    LSTM:  z = P s + (w_e / w_s) E(unit), with E(unit) for each of the gates f, i, o and for the candidate c;
           C = σ(z_f) C + σ(z_i) GELU(norm_c(z_c)); s = σ(z_o) GELU(norm_s(C)); logits = H s

`h` is the feature, the first unit is the root, n is the number of units that a path has, d the width of a state. The
norm divides by the root of the mean square, then scales and shifts. The LSTM begins with C = 0.
Layouts: keys may be under `speculator.` or not; `n_predict` and `scale_input` are in the config. `mlp-speculator`, of
fms-extras: `{emb,proj,head}.{depth}.weight`, `ln.{depth}.{weight,bias}`, `tie_weights`. `arctic-lstm`, of Arctic
Inference: `projs.{0,1}`, `forget_emb.0`, `cell_ln.0`, `state_ln.0`, `head.0`, `method`. Tied weights may be stored once
or once for each depth. Widths are read from the tensors.
Guarantee: drafts carry the distribution they are drawn from, or are point masses; exact under the rules that take the
form. A wrong head is lossless too, and slow: the first call tries it on the prompt and warns (`loaded`).
Knobs: `form` is the shape of the draft; a larger `width` and more `nodes` find more, and every node costs.
"""

import math
import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec_text.drafters.heads.entries import Entries, agree, part_numbers, positive
from mmspec_text.drafters.heads.layers import HeadNetwork
from mmspec_text.drafters.heads.pathwise.drafter import PathDrafter
from mmspec_text.drafters.heads.pathwise.head import PathCheckpoint, PathSizes
from mmspec_text.drafters.heads.stored import Stored, keys_of, stored_head

EPS = 1e-6
KNOWN = (*("method", "tie_weights", "tie_lstm_embs", "n_candidates", "num_lookahead_tokens", "top_k_tokens_per_head"),)
"""Entries of configs that are read by kind, or how many units or candidates a server drafts."""


@dataclass(frozen=True, kw_only=True)
class SpeculatorSizes(PathSizes):
    """The shape of a speculator."""

    inner: int  # numbers of a state
    tied: bool = True  # all depths have one embedding, norm and output layer, and all but the first one projection
    scale_input: bool = False  # whether the feature is scaled

    @property
    def weights(self) -> tuple[float, float]:
        """The weights of the state, w_s, and of the embedding, w_e."""
        state = 0.5 ** (0.5 / self.units)
        return state, math.sqrt((1 - state**2) * self.inner / 2)


class MlpNetwork(HeadNetwork):
    """An MLP speculator, a `PathHead`."""

    def __init__(self, a: SpeculatorSizes, vocab: int) -> None:
        super().__init__()
        self.a, self.units, self.vocab = a, a.units, vocab
        many, widths = 1 if a.tied else a.units, [a.target_hidden] + [a.inner] * (a.units - 1)
        self.emb = nn.ModuleList(nn.Embedding(a.vocab, a.inner) for _ in range(many))
        self.proj = nn.ModuleList(nn.Linear(width, a.inner, bias=False) for width in widths[: 2 if a.tied else a.units])
        self.ln = nn.ModuleList(Scaled(a.inner) for _ in range(many))
        self.head = nn.ModuleList(nn.Linear(a.inner, a.draft_vocab, bias=False) for _ in range(many))

    def rooted(self, features: Tensor, units: Tensor) -> Tensor:
        features = features.to(self.dtype)
        return self.followed(scaled(features) / math.sqrt(2) if self.a.scale_input else features, units, 0)

    def followed(self, states: Tensor, units: Tensor, depth: int) -> Tensor:
        state, token = self.a.weights
        proj = self.proj[min(depth, len(self.proj) - 1)]
        mixed = proj(states) * state + self._own(self.emb, depth)(units) * token
        return F.gelu(self._own(self.ln, depth)(mixed))

    def logits(self, states: Tensor, depth: int = 0) -> Tensor:
        return self.over_target(self._own(self.head, depth)(states))

    def _own(self, parts: nn.ModuleList, depth: int) -> nn.Module:
        return parts[0 if self.a.tied else depth]


class LstmNetwork(HeadNetwork):
    """An LSTM speculator, a `PathHead`; a node's state is s and C, one behind the other."""

    def __init__(self, a: SpeculatorSizes, vocab: int) -> None:
        super().__init__()
        self.a, self.units, self.vocab = a, a.units, vocab
        self.projs = nn.ModuleList(nn.Linear(width, 4 * a.inner, bias=False) for width in (a.target_hidden, a.inner))
        self.forget_emb = nn.ModuleList([nn.Embedding(a.vocab, a.inner)])  # of all gates, whatever its name
        self.cell_ln, self.state_ln = nn.ModuleList([Scaled(a.inner)]), nn.ModuleList([Scaled(a.inner)])
        self.head = nn.ModuleList([nn.Linear(a.inner, a.draft_vocab, bias=False)])

    def rooted(self, features: Tensor, units: Tensor) -> Tensor:
        features = features.to(self.dtype)
        features = scaled(features) / math.sqrt(2) if self.a.scale_input else features
        return self._stepped(self.projs[0](features), features.new_zeros(*units.shape, self.a.inner), units)

    def followed(self, states: Tensor, units: Tensor, depth: int) -> Tensor:
        state, cell = states.chunk(2, -1)
        return self._stepped(self.projs[1](state), cell, units)

    def logits(self, states: Tensor, depth: int = 0) -> Tensor:
        return self.over_target(self.head[0](states[..., : self.a.inner]))

    def _stepped(self, projected: Tensor, cell: Tensor, units: Tensor) -> Tensor:
        state, token = self.a.weights
        mixed = projected.unflatten(-1, (4, self.a.inner)) + self.forget_emb[0](units)[..., None, :] * (token / state)
        forget, take, give, new = mixed.unbind(-2)
        cell = cell * forget.sigmoid() + F.gelu(self.cell_ln[0](new)) * take.sigmoid()
        return torch.cat([F.gelu(self.state_ln[0](cell)) * give.sigmoid(), cell], -1)


class Scaled(nn.Module):
    """A norm by the root of the mean square, with a scale and a shift."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.empty(width)), nn.Parameter(torch.empty(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * scaled(x) + self.bias


def scaled(x: Tensor) -> Tensor:
    """States divided by the root of their mean square."""
    return F.rms_norm(x, x.shape[-1:], eps=EPS)


PREFIX, MOST = "speculator.", 64
"""The beginning of keys; the most units of a path."""
MLP = {"mlp-speculator": ("proj.0.weight", "emb.0.weight", "head.0.weight", "ln.0.weight")}
LSTM = {"arctic-lstm": ("projs.0.weight", "forget_emb.0.weight", "head.0.weight", "cell_ln.0.weight")}
"""Keys by which the kinds are known."""
GATES = re.compile("^(cell|input|output)_emb$")
"""Tables of the other gates, which share the table of the gate that forgets."""


def canonical(key: str) -> str:
    """A checkpoint's key as the networks name it."""
    return key.removeprefix(PREFIX)


def read_mlp(name: str) -> PathCheckpoint:
    """Read an MLP speculator from a folder or the hub."""
    stored = stored_head(name, "an MLP speculator", canonical, inside=(PREFIX,))
    if any(key not in stored.headers for key in MLP["mlp-speculator"]):
        raise stored.no_layout(MLP)
    inner, width = stored.matrix("proj.0.weight")
    sizes = _sizes(stored, "emb.0.weight", width, inner, bool(stored.config.get("tie_weights", False)))
    return _checkpoint(name, stored, "mlp-speculator", sizes, MlpNetwork)


def read_lstm(name: str) -> PathCheckpoint:
    """Read an LSTM speculator from a folder or the hub."""
    stored = stored_head(name, "an LSTM speculator", canonical, inside=(PREFIX,))
    config, what = stored.config, stored.what
    if any(key not in stored.headers for key in LSTM["arctic-lstm"]):
        raise stored.no_layout(LSTM)
    for entry, value in (("method", "sum_lstm"), ("tie_weights", True), ("tie_lstm_embs", True)):
        if config.get(entry, value) != value:
            raise ValueError(f"{what}: {entry} in its config is {config[entry]!r}, and only {value!r} is computed")
    inside, width = stored.matrix("projs.0.weight")
    if inside % 4:
        raise ValueError(f"{what}: projs.0.weight has {inside} rows, which are not four gates")
    sizes = _sizes(stored, "forget_emb.0.weight", width, inside // 4, True)
    return _checkpoint(name, stored, "arctic-lstm", sizes, LstmNetwork)


def _sizes(stored: Stored, table: str, width: int, inner: int, tied: bool) -> SpeculatorSizes:
    config, what = Entries(stored.config), stored.what
    units, scaled = positive(config, "n_predict", what), bool(config.get("scale_input", False))
    if units > MOST:
        raise ValueError(f"{what}: n_predict in its config is {units}, and the most is {MOST}")
    widths = {"inner_dim": inner, "proj_dim": inner}
    arctic = not table.startswith("emb.") or config.get("input_hidden_dim") is not None  # fms-extras' `emb_dim`
    widths |= {"emb_dim": inner, "input_hidden_dim": width} if arctic else {"emb_dim": width}
    said = {name: int(value) if str(value).isdecimal() else value for name in widths if (value := config.get(name))}
    depths = max(max(part_numbers(stored.headers, f"{part}."), default=0) for part in ("emb", "ln", "head")) + 1
    agree({**said, "n_predict": units}, {**widths, "n_predict": max(depths, units) if tied else depths}, what)
    config.settle(what, *KNOWN)
    return SpeculatorSizes(
        units=units,
        target_hidden=width,
        hidden=inner,
        vocab=stored.matrix(table)[0],
        draft_vocab=stored.matrix("head.0.weight")[0],
        own_embedding=True,
        inner=inner,
        tied=tied,
        scale_input=scaled,
    )


def _checkpoint(
    name: str, stored: Stored, kind: str, sizes: SpeculatorSizes, make: Callable[[Any, int], Any]
) -> PathCheckpoint:
    wanted = keys_of(make, sizes)
    return PathCheckpoint(name, kind, sizes, make, *stored.weights(wanted, _copies(stored.headers, wanted, sizes)))


def _copies(names: Iterable[str], wanted: Collection[str], sizes: SpeculatorSizes) -> dict[str, str]:
    """Tensors of tied parts that are stored for every depth, and of gates that share a table, with their originals."""
    found = {}
    for name in names if sizes.tied else ():
        part, _, rest = name.partition(".")
        depth, _, end = rest.partition(".")
        part = GATES.sub("forget_emb", part)
        last = next((i for i in (1, 0) if f"{part}.{i}.{end}" in wanted), None)
        if name not in wanted and last is not None and depth.isdecimal() and int(depth) < sizes.units:
            found[name] = f"{part}.{min(int(depth), last)}.{end}"
    return found


class MlpSpeculator(PathDrafter):
    """Drafts with an MLP speculator."""

    kind = "mlp-speculator"
    read = staticmethod(read_mlp)


class ArcticLstm(PathDrafter):
    """Drafts with an LSTM speculator."""

    kind = "arctic-lstm"
    read = staticmethod(read_lstm)
