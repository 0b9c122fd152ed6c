"""Messages between processes whose models are on devices of their own.

What is written is on the host; what is read is where the reader computes. So a target on a GPU and a draft model on the
CPU, or on another GPU, understand each other, and no process touches the other one's memory. A device that a message
names is the reader's.
"""

import io
import pickle
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

_HOST = torch.device("cpu")
_place = _HOST  # where this process reads tensors to


def compute_on(device: torch.device) -> None:
    """From now on, read tensors to a device. For a process that does nothing else."""
    global _place
    _place = device


def written(message: Any) -> bytes:
    """A message, with all of its tensors on the host."""
    file = io.BytesIO()
    _Writer(file, pickle.HIGHEST_PROTOCOL).dump(message)
    return file.getvalue()


def read(message: bytes) -> Any:
    """The message that was written, on this process's device."""
    return pickle.loads(message)


class _Writer(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, torch.device):
            return _here, ()
        if isinstance(value, nn.Parameter):
            return nn.Parameter, (value.data, value.requires_grad)
        if isinstance(value, Tensor):
            rebuild, arguments, *_ = value.to(_HOST).__reduce_ex__(pickle.HIGHEST_PROTOCOL)
            return _placed, (rebuild, arguments)
        return NotImplemented


def _here() -> torch.device:
    return _place


def _placed(rebuild: Callable[..., Tensor], arguments: tuple[Any, ...]) -> Tensor:
    return rebuild(*arguments).to(_place)
