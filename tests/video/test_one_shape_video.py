"""One shape per call, in half precision: frames of the shipped model of codes equal plain decoding of that width."""

from typing import Any

import pytest
import torch

import mmspec
from mmspec_video.recorded import folder_of, recorded

NAME = "mmspec/four-courts-tokens"


@pytest.fixture(scope="module")
def pipe() -> Any:
    pipe = mmspec.Pipeline.from_pretrained(NAME, dtype="bfloat16")
    pipe.set_progress_bar_config(disable=True)
    return pipe


@pytest.mark.parametrize(("k", "length"), [(8, 2), pytest.param(32, 24, marks=pytest.mark.slow)])
def test_frames_equal_plain_of_one_width(pipe: Any, k: int, length: int) -> None:
    """The longer clip goes beyond the model's context, so that sequences begin again."""
    clips = recorded([folder_of(NAME)])
    first, actions = (clips.frames[:1, :2] + 1) / 2, clips.actions[:1, 1 : 1 + length]
    found = []
    for method, how in (("frame-gs-sjd", {"k": k, "shape": "one"}), ("plain", {"shape": k + 1})):
        pipe.use(method, **how)
        output = pipe(first, actions, past_actions=clips.actions[:1, :1], seed=3, output_type="latent")
        assert set(output.report.sizes) == {k + 1} == {output.report.width}
        assert f"to the bit with plain of width {k + 1}" in str(output.report)
        found.append(output)
    assert torch.equal(found[0].frames, found[1].frames) and found[0].report.acceptance_length > 2
