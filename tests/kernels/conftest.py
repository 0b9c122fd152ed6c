"""Tests of Triton's kernels: on CUDA, or in Triton's interpreter (`make test-kernels`); without either they skip."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
import torch

from mmspec.core import kernels
from tests.kernels.cases import Case, case

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture
def device() -> torch.device:
    """A device on which kernels run."""
    why = kernels.why_not(DEVICE.type, DEVICE.index)
    if why:
        pytest.skip(f"{why} The interpreter runs them: make test-kernels")
    return DEVICE


@contextmanager
def torch_alone() -> Iterator[None]:
    """Inside the block torch computes what kernels would compute."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "available", lambda device: False)
        yield


@pytest.fixture
def reference() -> Callable[[], AbstractContextManager[None]]:
    """`with reference(): …` computes in torch what kernels would compute."""
    return torch_alone


@pytest.fixture
def make(device: torch.device) -> Callable[..., Case]:
    """`make(shape, …)`: a case on the device, as `tests.kernels.cases.case`."""

    def made(shape: str, *arguments: Any, **options: Any) -> Case:
        with torch_alone():
            return case(shape, device, *arguments, **options)

    return made
