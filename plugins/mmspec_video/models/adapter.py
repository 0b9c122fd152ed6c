"""A student as a small change of its teacher: low-rank differences of matrices (LoRA, arXiv 2106.09685).

What a consistency student learns fits into a twentieth of the teacher's weights (as LCM-LoRA found, 2311.05556), so it
can be shipped beside the teacher without a second model.
"""

import copy

import torch
from diffusers import ConfigMixin, ModelMixin
from diffusers.configuration_utils import register_to_config
from torch import Tensor, nn

from mmspec_video.models.next_frame import NextFrameDiT


class LowRank(nn.Module):
    """A frozen matrix and its learned difference, which begins at zero."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, base.in_features) / base.in_features**0.5)
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + (x @ self.down.T) @ self.up.T


class StudentAdapter(ModelMixin, ConfigMixin):
    """The differences, by the names of the matrices.

    Args:
        shapes: Of the matrices: `{"blocks.0.attn.to_qkv": [leaves, enters], …}`.
        rank: Of every difference.
        steps: Jumps from noise to a frame.
    """

    @register_to_config
    def __init__(self, shapes: dict[str, list[int]], rank: int = 8, steps: int = 2) -> None:
        super().__init__()
        self.down = nn.ParameterDict({_key(name): torch.zeros(rank, shape[1]) for name, shape in shapes.items()})
        self.up = nn.ParameterDict({_key(name): torch.zeros(shape[0], rank) for name, shape in shapes.items()})

    @classmethod
    def of(cls, adapted: nn.Module, steps: int) -> "StudentAdapter":
        """What was learned on top of a model (`adaptable`)."""
        layers = {name: layer for name, layer in adapted.named_modules() if isinstance(layer, LowRank)}
        rank = next(iter(layers.values())).down.shape[0]
        made = cls({name: list(layer.base.weight.shape) for name, layer in layers.items()}, rank, steps)
        for name, layer in layers.items():
            made.down[_key(name)].data.copy_(layer.down.detach())
            made.up[_key(name)].data.copy_(layer.up.detach())
        return made.eval()

    def student(self, teacher: NextFrameDiT) -> NextFrameDiT:
        """The teacher's copy with the differences added, which jumps.

        Raises:
            ValueError: It was learned on another model.
        """
        own = {name: list(layer.weight.shape) for name, layer in _matrices(teacher).items()}
        if own != {name: list(shape) for name, shape in self.config.shapes.items()}:
            raise ValueError("this student was learned from another teacher: its matrices have other names or shapes")
        made = copy.deepcopy(teacher)
        made.register_to_config(objective="consistency", steps=self.config.steps)
        for name, layer in _matrices(made).items():
            difference = self.up[_key(name)].float() @ self.down[_key(name)].float()
            layer.weight.data.add_(difference.to(layer.weight))
        return made.eval()


def adaptable(teacher: NextFrameDiT, rank: int) -> NextFrameDiT:
    """The teacher's copy whose blocks learn differences, and nothing else does."""
    made = copy.deepcopy(teacher).requires_grad_(False)
    for name, layer in _matrices(made).items():
        parent, _, own = name.rpartition(".")
        setattr(made.get_submodule(parent), own, LowRank(layer, rank))
    return made


def _matrices(model: nn.Module) -> dict[str, nn.Linear]:
    """Those of the blocks and of the way out."""
    named = model.named_modules()
    return {n: m for n, m in named if isinstance(m, nn.Linear) and n.startswith(("blocks.", "final_layer."))}


def _key(name: str) -> str:
    return name.replace(".", "/")  # dots part modules
