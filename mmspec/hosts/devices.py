"""Where a model's weights lie and its passes run, in which dtype: offloading, autocast, ranks of tensor parallelism.

accelerate's offloading (`enable_model_cpu_offload`, `enable_sequential_cpu_offload`) and diffusers' group offloading
attach hooks to `forward`. Targets that call a model's embeddings, blocks and head one by one never run the hook of the
whole model, and code that reads a weight without calling its module does not run the hook of that module: `awake` moves
the weights as if `forward` had been called.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from mmspec.registry.suggest import unknown


def refuse_device(device: Any) -> None:
    """Refuse a device, as torch takes it, that this machine does not have, before anything is loaded for it."""
    try:
        torch.ones(1, device=device).item()  # on `meta` there is nothing to read
    except (RuntimeError, AssertionError, NotImplementedError, TypeError) as error:
        existing = ["cpu", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))]
        raise ValueError(f"there is no device {device!r}; there is {', '.join(existing)}") from error


def half_on_gpu(model: nn.Module) -> bool:
    """True if a model's weights are on CUDA in half precision."""
    first = next(model.parameters(), None)
    return first is not None and first.device.type == "cuda" and first.dtype in (torch.float16, torch.bfloat16)


def hooks_of(module: object) -> list[Any]:
    """The offloading hooks of a module; empty if it is not offloaded."""
    own, registry = getattr(module, "_hf_hook", None), getattr(module, "_diffusers_hook", None)
    return [*([] if own is None else [own]), *([] if registry is None else registry.hooks.values())]


def device_of(model: Any) -> torch.device:
    """The device on which a model's passes run; the weights of an offloaded one are on `meta` between its passes."""
    for module in (model.get_input_embeddings(), *model.modules()) if model.device.type == "meta" else ():
        for hook in hooks_of(module):
            places = (getattr(part, "execution_device", None) for part in getattr(hook, "hooks", [hook]))
            place = next((place for place in places if place is not None), None)
            if place is not None:
                return torch.device(place)
    return torch.device(model.device)


@contextmanager
def awake(*modules: object) -> Iterator[None]:
    """Inside the block, the weights of these modules are on the device to which their hooks move them for a pass.

    Do not enter the block in inference mode: tensors that are moved there cannot be moved back. Give a model whose
    parts are called, and every part whose weights are read without a call.
    """
    hooked = [(hook, module) for module in modules for hook in hooks_of(module)]
    for hook, module in hooked:
        hook.pre_forward(module)
    try:
        yield
    finally:
        for hook, module in reversed(hooked):
            hook.post_forward(module, None)


def autocast_dtype(model: Any) -> torch.dtype | None:
    """The dtype of autocast on a model's device at present; None if it is off."""
    kind = device_of(model).type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None


def without_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """A block in which autocast is off on a device."""
    if not torch.is_autocast_enabled(device.type):  # most calls; and torch knows no autocast for some devices
        return nullcontext()
    return torch.autocast(device.type, enabled=False)


def inference() -> AbstractContextManager[Any]:
    """A block in inference mode; where torch traces, it does nothing."""
    return nullcontext() if torch.compiler.is_compiling() else torch.inference_mode()


def _several() -> bool:
    """True if this process is one of several ranks."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def is_cut(weight: Any) -> bool:
    """True if a weight is spread over several ranks, and has a part of its numbers in this process."""
    if not _several():
        return False
    from torch.distributed.tensor import DTensor  # takes long to import, and only ranks need it

    return isinstance(weight, DTensor)


def tensor_parallel_group(model: nn.Module) -> Any:
    """The process group of the ranks over which a model's layers are cut; None if this process has all of it. Refuses
    weights that are spread in another way, in which ranks decode texts of their own.
    """
    cut: list[Any] = [weight for weight in model.parameters() if is_cut(weight)] if _several() else []
    meshes = [weight.device_mesh for weight in cut]
    for mesh in meshes:
        names = mesh.mesh_dim_names or ()
        if mesh.ndim > 1 or (names and names != ("tp",)):
            raise ValueError(
                f"the weights are spread over the ranks as {' × '.join(map(str, names)) or 'a grid'}; only tensor "
                "parallel models can be speculated over, from DistributedConfig(tp_size=…) alone"
            )
    return meshes[0].get_group() if meshes and meshes[0].size() > 1 else None


NAMES = {name: getattr(torch, name) for name in ("float32", "bfloat16", "float16", "float64")}
SHORT = {"fp32": "float32", "fp16": "float16", "half": "float16", "bf16": "bfloat16", "fp64": "float64"}


def dtype_of(dtype: str | torch.dtype | None, torch_dtype: str | torch.dtype | None = None) -> torch.dtype:
    """The dtype of weights that a user named, under our or diffusers' name of the setting; float32 by default."""
    named = [_dtype(each) for each in (dtype, torch_dtype) if each is not None]
    if len(set(named)) > 1:
        raise ValueError(f"dtype={dtype} and torch_dtype={torch_dtype} are one setting; give one of them")
    return named[0] if named else torch.float32


def _dtype(dtype: str | torch.dtype) -> torch.dtype:
    name = str(dtype).removeprefix("torch.")
    if name not in NAMES:
        raise ValueError(unknown("dtype of weights", name, NAMES, SHORT))
    return NAMES[name]
