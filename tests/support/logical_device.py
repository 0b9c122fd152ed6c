"""A logical accelerator on a CPU: tensors that lie on a device of their own and compute on the CPU.

What it finds without a GPU:

* an operation over tensors of both devices, which raises as it does on CUDA;
* what a device without float64 cannot run, if it is one (`Meter(float64=False)`);
* everything for which the host waits: a value that it reads, a copy to the host, a copy of pageable memory to the
  device, a shape that depends on data;
* every operation that is not a view: on CUDA each is the launch of at least one kernel.

The device is registered with torch for the life of the process, and functions of torch are replaced: use it in a
process of its own (`tests.support.device_run`).
"""

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend
from torch.utils.weak import WeakTensorKeyDictionary

from tests.support.logical_operations import COPIES, FREE, INDEXING, INPLACE_COPY, STRICT, WAITING

_setup_privateuseone_for_python_backend("logical")
torch.get_device_module("logical").get_amp_supported_dtype = lambda: [torch.bfloat16]  # what `torch.autocast` asks for
DEVICE = torch.device("logical", 0)

ROOT = str(Path(__file__).parents[2]) + "/"
_PINNED = WeakTensorKeyDictionary()
"""Tensors of the host in memory that a copy to the device may read while the host goes on."""


class OnDevice(Tensor):
    """A tensor on the logical device."""

    inner: Tensor  # its data, on the CPU

    @staticmethod
    def __new__(cls, inner: Tensor) -> "OnDevice":
        made = Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=DEVICE,
        )
        made.inner = inner
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return meter().run(func, args, kwargs or {})

    def untyped_storage(self) -> Any:
        return self.inner.untyped_storage()

    def __repr__(self) -> str:
        return f"OnDevice({self.inner!r})"

    def __getitem__(self, index: Any) -> Tensor:
        return Tensor.__getitem__(self, _sent_index(index))

    def __setitem__(self, index: Any, value: Any) -> None:
        Tensor.__setitem__(self, _sent_index(index), value)

    def tolist(self) -> Any:
        meter().wait("tolist")
        return self.inner.tolist()

    def numpy(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError("a tensor on the device is no array; copy it to the host first")

    __array__ = numpy

    def pin_memory(self, device: Any = None) -> Tensor:
        raise RuntimeError("only memory of the host can be pinned")


class Meter(TorchDispatchMode):
    """Inside this block the device exists, and is metered.

    Args:
        float64: Whether the device has float64; Apple's GPUs have not.

    Attributes:
        waits: What the host waited for: (what, place in our code) → how often.
        launches: Operations that launch kernels outside of models, by place in our code.
        in_model: Depth of the calls of models that are running (`hooked`).
    """

    current: "Meter | None" = None

    def __init__(self, float64: bool = True) -> None:
        super().__init__()
        self.float64 = float64
        self.in_model = 0
        self._under_way: list[tuple[Tensor, Tensor]] = []
        self.reset()

    def reset(self) -> None:
        """Forget the counts."""
        self.waits: Counter[tuple[str, str]] = Counter()
        self.launches: Counter[str] = Counter()

    def __enter__(self) -> "Meter":
        Meter.current = self
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        Meter.current = None
        super().__exit__(*error)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.run(func, args, kwargs or {})

    def wait(self, what: str) -> None:
        """Count that the host waits; what was under way has arrived then."""
        self.waits[what, _place()] += 1
        for there, value in self._under_way:
            there.copy_(value)
        self._under_way.clear()

    def _later(self, value: Tensor) -> Tensor:
        """A tensor of the host that holds `value` after the next wait, and until then none that makes sense."""
        there = torch.full_like(value, True if value.dtype == torch.bool else -(10**6))
        self._under_way.append((there, value.clone()))
        return there

    def run(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """One operation, on either device."""
        base = func._schema.name
        ours, hosts = list[OnDevice](), list[Tensor]()
        given = _inner(args, ours, hosts)
        named = {name: _inner(value, ours, hosts) for name, value in kwargs.items()}
        wanted = None if kwargs.get("device") is None else torch.device(kwargs["device"]).type
        if not ours and wanted != DEVICE.type:
            return func(*args, **kwargs)
        to_host = base in COPIES and (wanted == "cpu" if base != INPLACE_COPY else not isinstance(args[0], OnDevice))
        self._note_waits(func, base, args, kwargs, hosts, to_host)
        if wanted == DEVICE.type:
            named["device"] = torch.device("cpu")
            named.pop("pin_memory", None)
        out = func(*given, **named)
        if to_host and base != INPLACE_COPY and kwargs.get("non_blocking"):
            out = self._later(out)
        name = base + ("." + func._schema.overload_name if func._schema.overload_name else "")
        if not self.in_model and not func.is_view and base not in FREE and name not in FREE:
            self.launches[_place()] += 1
        known = {id(t.inner): t for t in ours}

        def wrapped(value: Any) -> Any:
            if not isinstance(value, Tensor) or isinstance(value, OnDevice) or to_host:
                return value
            if value.dtype == torch.float64 and not self.float64:
                raise TypeError(f"the device has no float64, and {base} makes it at {_place()}")
            return known[id(value)] if id(value) in known else OnDevice(value)

        return type(out)(map(wrapped, out)) if isinstance(out, (tuple, list)) else wrapped(out)

    def _note_waits(
        self, func: Any, base: str, args: Any, kwargs: dict[str, Any], hosts: list[Tensor], to_host: bool
    ) -> None:
        """Count what the host waits for; raise where both devices meet."""
        if base in COPIES:
            source = args[1] if base == INPLACE_COPY else args[0]
            from_host = not isinstance(source, OnDevice)
            later = kwargs.get("non_blocking") and (source in _PINNED if from_host else base != INPLACE_COPY)
            if to_host != from_host and not later:
                self.wait("copy to the device" if from_host else "copy to the host")
            return
        if base in WAITING or f"{base}.{func._schema.overload_name}" in WAITING:
            self.wait(base.removeprefix("aten::"))
        if base in INDEXING:
            index = [i for i in args[1] if isinstance(i, Tensor)]
            if any(i.dtype in (torch.bool, torch.uint8) for i in index):
                self.wait("boolean mask")
            elif any(i.numel() for i in index if not isinstance(i, OnDevice)):
                self.wait("index from the host")
        elif any(t.dim() for t in hosts) or (hosts and base in STRICT and len(hosts) < len(args)):
            raise RuntimeError(f"{base} has tensors on both devices, at {_place()}")


def _inner(value: Any, ours: list[OnDevice], hosts: list[Tensor]) -> Any:
    """An argument with data for tensors on the device; they, and tensors of the host, are appended to the lists."""
    if isinstance(value, OnDevice):
        ours.append(value)
        return value.inner
    if isinstance(value, Tensor):
        hosts.append(value)
    elif isinstance(value, (tuple, list)):
        return [_inner(part, ours, hosts) for part in value]
    return value


def meter() -> Meter:
    assert Meter.current is not None, "a tensor of the device is used outside of Meter()"
    return Meter.current


def _place() -> str:
    """File and line of the innermost frame of our code."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename.removeprefix(ROOT)
        if name.startswith(("mmspec/", "plugins/")):
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back
    return "elsewhere"


def _sent_index(index: Any) -> Any:
    """An index in which lists are tensors on the device, as torch makes them."""
    if isinstance(index, tuple):
        return tuple(_sent_index(part) if isinstance(part, list) else part for part in index)
    if isinstance(index, list):
        meter().wait("list as index")
        return OnDevice(_make_tensor(index))
    return index


_make_tensor, _make_as_tensor, _histc = torch.tensor, torch.as_tensor, torch.histc


def _making(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def made(data: Any, *args: Any, dtype: Any = None, device: Any = None, **kwargs: Any) -> Tensor:
        if isinstance(data, OnDevice):
            return data.to(device=device or data.device, dtype=dtype or data.dtype)
        if device is not None and torch.device(device).type == DEVICE.type:
            return make(data, *args, dtype=dtype, **kwargs).to(DEVICE)
        return make(data, *args, dtype=dtype, device=device, **kwargs)

    return made


def _pinned(self: Tensor, device: Any = None) -> Tensor:
    copy = self.clone()
    _PINNED[copy] = True
    return copy


torch.tensor, torch.as_tensor = _making(_make_tensor), _making(_make_as_tensor)  # type: ignore[assignment]
torch.histc = lambda x, *args, **kwargs: _histc(x.float(), *args, **kwargs)  # CUDA has it for integers
Tensor.pin_memory = _pinned  # type: ignore[assignment, method-assign]
torch.inference_mode = lambda mode=True: torch.no_grad()  # type: ignore # wrappers are no inference tensors
