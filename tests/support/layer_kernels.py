"""Stand-ins for the kernels of layers on a CPU: the same numbers, each of them one operation, as it is one launch."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

import mmspec.core.kernels
from mmspec.hosts import fused_layers


def normal(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    value = x.float()
    return weight * (value * torch.rsqrt(value.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)


alone = torch.library.custom_op("stand_in::normalised", normal, mutates_args=())


@torch.library.custom_op("stand_in::normalised_sum", mutates_args=("total",))
def of_sum(a: Tensor, weight: Tensor, eps: float, b: Tensor, total: Tensor) -> Tensor:
    return normal(torch.add(a, b, out=total), weight, eps)


def normalised(x: Tensor, weight: Tensor, eps: float, *sum: Tensor) -> Tensor:
    return of_sum(x, weight, eps, *sum) if sum else alone(x, weight, eps)


@torch.library.custom_op("stand_in::gated", mutates_args=("active",))
def gated(x: Tensor, active: Tensor) -> Tensor:
    gate, up = x.chunk(2, -1)
    active.copy_(F.silu(gate))
    return active * up


@torch.library.custom_op("stand_in::rotated", mutates_args=())
def rotated(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    return tuple(each.contiguous() for each in apply_rotary_pos_emb(q, k, cos, sin))  # type: ignore[return-value]


@contextmanager
def layer_kernels() -> Iterator[None]:
    """Inside the block a CPU runs the kernels of layers, by stand-ins, and no others."""
    kernels = SimpleNamespace(normalised=normalised, gated=gated, rotated=rotated)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "mmspec.core.kernels.layers", kernels)
        patch.setattr(mmspec.core.kernels, "layers", kernels, raising=False)
        patch.setattr(fused_layers, "kernels", SimpleNamespace(available=lambda device: True))
        patch.setenv("MMSPEC_PRODUCTS", "torch")  # as on a device that has no packed weights
        yield
