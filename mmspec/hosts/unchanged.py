"""Models as they were before a check: modes, attributes and buffers."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn


@contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """Inside the block, modules are in evaluation mode; afterwards they have their attributes and buffers back.

    Some modules store positions of the last prompt's images, or the frequencies of the longest text so far.
    """
    attributes: list[dict[str, Any]] = [own for module in model.modules() for own in (vars(module), module._buffers)]
    before = [dict(own) for own in attributes]
    for module in model.modules():
        module.training = False
    try:
        yield
    finally:
        for own, was in zip(attributes, before, strict=True):
            for name in own.keys() - was.keys():
                del own[name]
            own.update({name: value for name, value in was.items() if not _moved(value, own.get(name))})


def _moved(before: Any, now: Any) -> bool:
    """Whether a buffer is on another device now, because offloading moved the model."""
    return isinstance(before, Tensor) and isinstance(now, Tensor) and before.device != now.device
