"""Quantised linear layers, whose rounding two right passes need not share.

Layers that quantise activations on the fly (int8, fp8) are staircases: a difference in the last bit of float32 moves an
input to its next step, and behind a few layers two right passes differ by as much as the quantisation itself; in some
kernels the height of a step follows the largest input of the whole pass, in whatever row. Layers of 4 bits may compute
in half precision. So logits of whole models cannot tell this rounding from a wrong mask. Two comparisons can:

- A layer is run on its own, twice at one width, with its rows in another order: every row has to come out the same, and
  other rows beside it may move it by a rounding only.
- The model around the layers is run with stand-ins, linear maps of the same sizes whose rows know nothing of each
  other: masks, positions and commits are seen to the precision of the model's dtype, and in less time.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import get_ident
from typing import Any

import torch
from torch import Tensor, nn

from mmspec.core.out_of_memory import out_of_memory
from mmspec.hosts.devices import device_of, is_cut
from mmspec.hosts.fingerprint import rounding

HALF = 0.012
"""The largest defect of linearity, as a share of a row's size, of layers in bfloat16; with fewer bits, activations are
quantised. Measured on SmolLM2-135M: at most 0.006 with weights of 16, 8 and 4 bits, at least 0.022 with int8 inputs."""

FULL = 1e-4  # the same of layers in float32, where at most 2e-7 was measured

APART = 4.0
"""Other rows may move a row by so many times its defect of linearity: more is no rounding, but another function."""


@dataclass(frozen=True)
class QuantisedLayers:
    """The layers of a model in whose places the self-check puts stand-ins."""

    names: tuple[str, ...] = ()
    activations: bool = False  # whether some of them quantise activations, too
    shared: bool = False  # whether these round a row by what the other rows of the pass hold

    @classmethod
    @torch.no_grad()
    def of(cls, model: Any) -> "QuantisedLayers":
        """Find the layers by running each linear layer that is not torch's own, a few times on four rows."""
        found: dict[str, tuple[bool, bool]] = {}
        for name, layer in model.named_modules():
            if not _is_linear(layer) or _is_plain(layer) or any(_is_linear(part) for part in layer.children()):
                continue
            try:
                how = _rounding(layer, model)
            except Exception as error:  # it takes something else than rows, so that nothing can stand in for it
                if out_of_memory(error):
                    raise
                continue
            if how is not None:
                found[name] = how
        return cls(tuple(found), any(how[0] for how in found.values()), any(how[1] for how in found.values()))

    @property
    def warning(self) -> str:
        """A warning for users of a target that quantises activations; "" of others."""
        if not self.activations:
            return ""
        what = "what else is in its pass" if self.shared else "the width of its pass"
        one = "" if self.shared else "; with shape='one' it is that of plain decoding of one width"
        return (
            f"{len(self.names)} layers of this model quantise their activations in every pass, so that a unit's "
            f"scores depend on {what}: the output is plain decoding's up to that rounding, and no seed repeats "
            f"that of unmodified generate{one}"
        )

    @contextmanager
    def replaced(self, model: nn.Module) -> Iterator[None]:
        """Inside the block, this thread's passes run stand-ins in the place of the layers."""
        layers = [model.get_submodule(name) for name in self.names]
        before = [vars(layer).get("forward") for layer in layers]
        for number, layer in enumerate(layers):
            vars(layer)["forward"] = _stand_in(layer, number)
        try:
            yield
        finally:
            for layer, forward in zip(layers, before, strict=True):
                del vars(layer)["forward"]
                if forward is not None:
                    vars(layer)["forward"] = forward


NONE = QuantisedLayers()


def _is_linear(layer: Any) -> bool:
    return all(isinstance(getattr(layer, name, None), int) for name in ("in_features", "out_features"))


def _is_plain(layer: Any) -> bool:
    """True if a layer is torch's own, over a weight of floating-point numbers."""
    own = "forward" in vars(layer) and "_hf_hook" not in vars(layer)
    return type(layer) is nn.Linear and not _has_packed_weight(layer) and not own


def _has_packed_weight(layer: Any) -> bool:
    weight: Any = getattr(layer, "weight", None)
    return not (type(weight) is nn.Parameter or is_cut(weight)) or not weight.is_floating_point()


def _rounding(layer: Any, model: Any) -> tuple[bool, bool] | None:
    """Two answers: a layer quantises its inputs; it does so by what other rows hold. None: it is as precise as the
    model's dtype and has a plain weight, or it mixes rows.
    """
    device = next((weight.device for weight in layer.parameters() if not weight.is_meta), device_of(model))
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(2, layer.in_features, generator=generator, dtype=torch.float32, device="cpu")
    x, y = (drawn * 16).round().clamp(-64, 64) / 32  # sums have few bits, so that every float dtype holds them
    x[0] = 5.0  # a large input, next to which 8 bits are coarse; bitsandbytes takes those above 6 out
    crowd = y.clone()
    crowd[-1] = 12.0

    def run(*rows: Tensor) -> Tensor:
        return layer(torch.stack(rows)[None].to(device, model.dtype))[0].float()

    zero = torch.zeros_like(x)
    out = run(x, y, x + y, zero)
    size, fine = _size(out[1] - out[3]) or 1.0, max(FULL, min(HALF, 1.5 * rounding(model)))
    defect = _size(out[0] + out[1] - out[2] - out[3]) / size
    if defect <= fine and not _has_packed_weight(layer):
        return None
    if not (run(x + y, x, zero, y) - out[[2, 0, 3, 1]]).abs().max() <= fine * out.abs().max():
        return None
    moved = [run(*rows)[0] - out[0] for rows in ((x,), (x, crowd, crowd, y))]
    if max(map(_size, moved)) > APART * max(defect, fine) * size:
        return None
    return defect > HALF, defect > HALF and bool(moved[1].any())


def _size(row: Tensor) -> float:
    return float(row.square().mean().sqrt())


def _stand_in(layer: Any, number: int) -> Callable[..., Tensor]:
    """A function in the place of a layer's forward: signed entries of every row, divided by its size. It costs little,
    and holds attention scores where a wrong mask shows, whatever the weights are.
    """
    own, thread = layer.forward, get_ident()
    generator = torch.Generator().manual_seed(number)
    taken = torch.randint(layer.in_features, (layer.out_features,), generator=generator, device="cpu")
    sign = 1 - 2 * torch.randint(2, taken.shape, generator=generator, device="cpu")

    def forward(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if get_ident() != thread:  # another thread's generate, of the live model
            return own(x, *args, **kwargs)
        unit = nn.functional.rms_norm(x, x.shape[-1:])
        return unit[..., taken.to(x.device)] * sign.to(x.device, x.dtype)

    return forward
