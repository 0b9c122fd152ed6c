"""Tiny models are made wherever their weights are."""

import copy

from mmspec.testing.tiny_models import llama
from tests.support.random_models import noisy


def test_a_noisy_copy_on_another_device() -> None:
    """The noise is drawn on the CPU, so that it is the same on every device."""
    model = copy.deepcopy(llama()).to("meta")
    assert {weight.device.type for weight in noisy(model, 0.1).parameters()} == {"meta"}
