"""Train a student as a small change of its teacher: low-rank differences of matrices (LoRA, arXiv 2106.09685)."""

import copy

import torch
from torch import Tensor, nn

from mmspec_video.models.next_frame import NextFrameDiT
from mmspec_video.models.students import StudentAdapter, key_of, matrices_of


class LowRankLinear(nn.Module):
    """A frozen linear layer and its learned low-rank difference, which is zero at first."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, base.in_features) / base.in_features**0.5)
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + (x @ self.down.T) @ self.up.T


def adaptable(teacher: NextFrameDiT, rank: int) -> NextFrameDiT:
    """A copy of the teacher in which only low-rank differences of the matrices are trained."""
    model = copy.deepcopy(teacher).requires_grad_(False)
    for name, layer in matrices_of(model).items():
        parent, _, own = name.rpartition(".")
        setattr(model.get_submodule(parent), own, LowRankLinear(layer, rank))
    return model


def adapter_of(adapted: nn.Module, steps: int) -> StudentAdapter:
    """The adapter that holds what a model of `adaptable` has learned."""
    layers = {name: layer for name, layer in adapted.named_modules() if isinstance(layer, LowRankLinear)}
    rank = next(iter(layers.values())).down.shape[0]
    adapter = StudentAdapter({name: list(layer.base.weight.shape) for name, layer in layers.items()}, rank, steps)
    for name, layer in layers.items():
        adapter.down[key_of(name)].data.copy_(layer.down.detach())
        adapter.up[key_of(name)].data.copy_(layer.up.detach())
    return adapter.eval()
