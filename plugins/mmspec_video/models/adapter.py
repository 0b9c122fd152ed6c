"""A student as a small change of its teacher: low-rank differences of matrices (LoRA, arXiv 2106.09685).

What a consistency student learns fits into a twentieth of the teacher's weights (as LCM-LoRA found, arXiv 2311.05556),
so a student can be shipped as a small file beside its teacher.
"""

import copy

import torch
from diffusers import ConfigMixin, ModelMixin
from diffusers.configuration_utils import register_to_config
from torch import Tensor, nn

from mmspec_video.models.next_frame import NextFrameDiT


class LowRankLinear(nn.Module):
    """A frozen linear layer and its learned low-rank difference, which is zero at first."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, base.in_features) / base.in_features**0.5)
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + (x @ self.down.T) @ self.up.T


class StudentAdapter(ModelMixin, ConfigMixin):
    """The low-rank differences of a student, by the names of the teacher's weight matrices.

    Args:
        shapes: Shapes of the matrices: `{"blocks.0.attn.to_qkv": [outputs, inputs], …}`.
        rank: Rank of every difference.
        steps: The student's steps from noise to a frame.
    """

    @register_to_config
    def __init__(self, shapes: dict[str, list[int]], rank: int = 8, steps: int = 2) -> None:
        super().__init__()
        self.down = nn.ParameterDict({_key(name): torch.zeros(rank, shape[1]) for name, shape in shapes.items()})
        self.up = nn.ParameterDict({_key(name): torch.zeros(shape[0], rank) for name, shape in shapes.items()})

    @classmethod
    def of(cls, adapted: nn.Module, steps: int) -> "StudentAdapter":
        """The adapter that holds what a model of `adaptable` has learned."""
        layers = {name: layer for name, layer in adapted.named_modules() if isinstance(layer, LowRankLinear)}
        rank = next(iter(layers.values())).down.shape[0]
        adapter = cls({name: list(layer.base.weight.shape) for name, layer in layers.items()}, rank, steps)
        for name, layer in layers.items():
            adapter.down[_key(name)].data.copy_(layer.down.detach())
            adapter.up[_key(name)].data.copy_(layer.up.detach())
        return adapter.eval()

    def student(self, teacher: NextFrameDiT) -> NextFrameDiT:
        """A copy of the teacher with the differences added: a consistency model.

        Raises:
            ValueError: The adapter was learned on another model.
        """
        own = {name: list(layer.weight.shape) for name, layer in _matrices(teacher).items()}
        if own != {name: list(shape) for name, shape in self.config.shapes.items()}:
            raise ValueError("this student was learned from another teacher: its matrices have other names or shapes")
        student = copy.deepcopy(teacher)
        student.register_to_config(objective="consistency", steps=self.config.steps)
        for name, layer in _matrices(student).items():
            difference = self.up[_key(name)].float() @ self.down[_key(name)].float()
            layer.weight.data.add_(difference.to(layer.weight))
        return student.eval()


def adaptable(teacher: NextFrameDiT, rank: int) -> NextFrameDiT:
    """A copy of the teacher in which only low-rank differences of the matrices are trained."""
    model = copy.deepcopy(teacher).requires_grad_(False)
    for name, layer in _matrices(model).items():
        parent, _, own = name.rpartition(".")
        setattr(model.get_submodule(parent), own, LowRankLinear(layer, rank))
    return model


def _matrices(model: nn.Module) -> dict[str, nn.Linear]:
    """The linear layers of the blocks and of the final layer, by name."""
    named = model.named_modules()
    return {n: m for n, m in named if isinstance(m, nn.Linear) and n.startswith(("blocks.", "final_layer."))}


def _key(name: str) -> str:
    return name.replace(".", "/")  # a dot in a name would separate modules
