"""One shape per call, in half precision: codes of the shipped emoji equal plain decoding of that width to the bit."""

from typing import Any

import pytest
import torch

import mmspec


@pytest.fixture(scope="module")
def pipe() -> Any:
    pipe = mmspec.Pipeline.from_pretrained("mmspec/emoji", dtype="bfloat16")
    pipe.set_progress_bar_config(disable=True)
    return pipe


def codes(pipe: Any, method: str, seed: int, **how: Any) -> Any:
    return pipe.use(method, **how)("red heart", guidance_scale=2.0, seed=seed, output_type="latent")


@pytest.mark.parametrize(("seed", "k"), [(0, 8), pytest.param(1, 16, marks=pytest.mark.slow)])
def test_codes_equal_plain_of_one_width(pipe: Any, seed: int, k: int) -> None:
    drafted = codes(pipe, "gs-sjd", seed, k=k, shape="one")
    assert set(drafted.report.sizes) == {k + 1} and drafted.report.acceptance_length > 1.5
    plain = codes(pipe, "plain", seed, shape=k + 1)
    assert torch.equal(plain.images, drafted.images)


@pytest.mark.slow
def test_codes_of_two_widths_part(pipe: Any) -> None:
    assert not torch.equal(codes(pipe, "plain", 0).images, codes(pipe, "plain", 0, shape=9).images)
