"""The networks of MLP and LSTM speculators.

    both:  w_s = 0.5^(0.5 / n), w_e = sqrt((1 - w_s²) d / 2); s = h, or h / rms(h) / √2 if the input is scaled
    MLP:   s = GELU(norm_i(w_s P_i s + w_e E_i(unit))); logits = H_i s
    LSTM:  z = P s + (w_e / w_s) E(unit), with E(unit) for each of the gates f, i, o and for the candidate c;
           C = σ(z_f) C + σ(z_i) GELU(norm_c(z_c)); s = σ(z_o) GELU(norm_s(C)); logits = H s

`h` is the feature, the first unit is the root, n is the number of units that a path has, d the width of a state. The
norm divides by the root of the mean square, then scales and shifts. The LSTM begins with C = 0.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec_text.drafters.heads.eagle.vocabulary import over_target
from mmspec_text.drafters.heads.pathwise.block import dtype_of
from mmspec_text.drafters.heads.pathwise.checkpoint import PathSizes

EPS = 1e-6


@dataclass(frozen=True, kw_only=True)
class SpeculatorSizes(PathSizes):
    """The shape of a speculator."""

    inner: int  # numbers of a state
    tied: bool = True  # all depths have one embedding, norm and output layer, and all but the first one projection
    scale_input: bool = False  # whether the feature is scaled

    @property
    def weights(self) -> tuple[float, float]:
        """Those of the state, w_s, and of the embedding, w_e."""
        state = 0.5 ** (0.5 / self.units)
        return state, math.sqrt((1 - state**2) * self.inner / 2)


class MlpSpeculator(nn.Module):
    """An MLP speculator, a `PathHead`."""

    def __init__(self, a: SpeculatorSizes, vocab: int) -> None:
        super().__init__()
        self.a, self.units, self.vocab = a, a.units, vocab
        many, widths = 1 if a.tied else a.units, [a.target_hidden] + [a.inner] * (a.units - 1)
        self.emb = nn.ModuleList(nn.Embedding(a.vocab, a.inner) for _ in range(many))
        self.proj = nn.ModuleList(nn.Linear(width, a.inner, bias=False) for width in widths[: 2 if a.tied else a.units])
        self.ln = nn.ModuleList(Scaled(a.inner) for _ in range(many))
        self.head = nn.ModuleList(nn.Linear(a.inner, a.draft_vocab, bias=False) for _ in range(many))

    def join(self, embedding: nn.Module, output: nn.Module, device: torch.device, dtype: torch.dtype) -> None:
        self.to(device, dtype)

    @property
    def borrowed(self) -> tuple[nn.Module, ...]:
        """The target's modules that it calls: none."""
        return ()

    def rooted(self, features: Tensor, units: Tensor) -> Tensor:
        features = features.to(dtype_of(self))
        return self.followed(scaled(features) / math.sqrt(2) if self.a.scale_input else features, units, 0)

    def followed(self, states: Tensor, units: Tensor, depth: int) -> Tensor:
        state, token = self.a.weights
        proj = self.proj[min(depth, len(self.proj) - 1)]
        mixed = proj(states) * state + self._own(self.emb, depth)(units) * token
        return F.gelu(self._own(self.ln, depth)(mixed))

    def logits(self, states: Tensor, depth: int = 0) -> Tensor:
        return over_target(self._own(self.head, depth)(states), None, self.vocab)

    def _own(self, parts: nn.ModuleList, depth: int) -> nn.Module:
        return parts[0 if self.a.tied else depth]


class LstmSpeculator(nn.Module):
    """An LSTM speculator, a `PathHead`; a node's state is s and C, one behind the other."""

    def __init__(self, a: SpeculatorSizes, vocab: int) -> None:
        super().__init__()
        self.a, self.units, self.vocab = a, a.units, vocab
        self.projs = nn.ModuleList(nn.Linear(width, 4 * a.inner, bias=False) for width in (a.target_hidden, a.inner))
        self.forget_emb = nn.ModuleList([nn.Embedding(a.vocab, a.inner)])  # of all gates, whatever its name
        self.cell_ln, self.state_ln = nn.ModuleList([Scaled(a.inner)]), nn.ModuleList([Scaled(a.inner)])
        self.head = nn.ModuleList([nn.Linear(a.inner, a.draft_vocab, bias=False)])

    def join(self, embedding: nn.Module, output: nn.Module, device: torch.device, dtype: torch.dtype) -> None:
        self.to(device, dtype)

    @property
    def borrowed(self) -> tuple[nn.Module, ...]:
        """The target's modules that it calls: none."""
        return ()

    def rooted(self, features: Tensor, units: Tensor) -> Tensor:
        features = features.to(dtype_of(self))
        features = scaled(features) / math.sqrt(2) if self.a.scale_input else features
        return self._stepped(self.projs[0](features), features.new_zeros(*units.shape, self.a.inner), units)

    def followed(self, states: Tensor, units: Tensor, depth: int) -> Tensor:
        state, cell = states.chunk(2, -1)
        return self._stepped(self.projs[1](state), cell, units)

    def logits(self, states: Tensor, depth: int = 0) -> Tensor:
        return over_target(self.head[0](states[..., : self.a.inner]), None, self.vocab)

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
