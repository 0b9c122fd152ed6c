"""Messages between processes: on the host while they are on their way, and then where the reader computes."""

import pickle
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mmspec_zoo.overlap import crossing
from mmspec_zoo.overlap.crossing import compute_on, read, written


@dataclass
class Message:
    units: Tensor
    device: torch.device
    parts: dict[str, Any]


VALUES = {
    "float32": torch.randn(2, 3),
    "bfloat16": torch.randn(4).bfloat16(),
    "bool": torch.tensor([True, False]),
    "empty": torch.empty(2, 0, dtype=torch.int64),
    "no dimension": torch.tensor(7),
    "a view": torch.arange(12).view(3, 4)[:, 1:3].T,
}


@pytest.mark.parametrize("name", VALUES)
def test_values_and_dtypes_are_kept(name: str) -> None:
    value = VALUES[name]
    found = read(written((value, [value])))
    assert torch.equal(found[0], value) and found[0].dtype == value.dtype and found[1][0] is found[0]


def test_what_is_read_lies_where_the_reader_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also devices that are named, weights, and what is deep inside."""
    linear = nn.Linear(3, 2).bfloat16()
    linear.weight.requires_grad_(False)
    sent = written(Message(VALUES["float32"], torch.device("cpu"), {"model": linear, "list": [VALUES["bool"], 3, "x"]}))
    monkeypatch.setattr(crossing, "_place", torch.device("cpu"))
    compute_on(torch.device("meta"))
    found = read(sent)
    assert found.device.type == found.units.device.type == "meta" and found.units.shape == (2, 3)
    assert found.parts["list"][0].is_meta and found.parts["list"][1:] == [3, "x"]
    weights = dict(found.parts["model"].named_parameters())
    assert weights.keys() == {"weight", "bias"} and all(value.is_meta for value in weights.values())
    assert weights["weight"].dtype == torch.bfloat16
    assert not weights["weight"].requires_grad and weights["bias"].requires_grad


def test_what_comes_from_another_device_is_written_on_the_host() -> None:
    """A device without numbers stands for it: only the host has something to write."""
    with pytest.raises(NotImplementedError, match="meta"):
        written(torch.ones(2, device="meta"))


def test_what_cannot_be_written_is_an_error() -> None:
    with pytest.raises((pickle.PicklingError, AttributeError, TypeError)):
        written(lambda: None)
