"""Models whose weights are spread over several processes, as `torchrun` and transformers' `DistributedConfig` do it."""

from typing import Any

import torch.distributed as dist
from torch import nn


def tensor_parallel_group(model: nn.Module) -> Any:
    """The process group of the ranks over which a model's layers are cut; None if this process has all of it.

    Raises:
        ValueError: Its weights are spread in another way, in which ranks decode texts of their own.
    """
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return None
    from torch.distributed.tensor import DTensor  # takes long to import, and only ranks need it

    meshes = [weight.device_mesh for weight in model.parameters() if isinstance(weight, DTensor)]
    for mesh in meshes:
        names = mesh.mesh_dim_names or ()
        if mesh.ndim > 1 or (names and names != ("tp",)):
            raise ValueError(
                f"the weights are spread over the ranks as {' × '.join(map(str, names)) or 'a grid'}; only tensor "
                "parallel models can be speculated over, from DistributedConfig(tp_size=…) alone"
            )
    return meshes[0].get_group() if meshes and meshes[0].size() > 1 else None
