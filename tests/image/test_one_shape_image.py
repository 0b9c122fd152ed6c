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


def codes(pipe: Any, method: str, seed: int, call: Any = None, **how: Any) -> Any:
    made = pipe.use(method, **how)
    return made("red heart", guidance_scale=2.0, seed=seed, output_type="latent", **(call or {}))


@pytest.mark.parametrize(("seed", "k"), [(0, 8), pytest.param(1, 16, marks=pytest.mark.slow)])
def test_codes_equal_plain_of_one_width(pipe: Any, seed: int, k: int) -> None:
    drafted = codes(pipe, "gs-sjd", seed, k=k, shape="one")
    assert set(drafted.report.sizes) == {k + 1} and drafted.report.acceptance_length > 1.5
    plain = codes(pipe, "plain", seed, shape=k + 1)
    assert torch.equal(plain.images, drafted.images)


@pytest.mark.slow
def test_so_do_steered_codes(pipe: Any) -> None:
    """Guidance leads away from what the codes so far say, at fixed numbers of codes."""
    words = ("star", "apple")

    def steer(pipe: Any, step: int, timestep: int, tensors: dict[str, Any]) -> dict[str, Any]:
        seen.append(timestep)
        other = pipe.encode_prompt(words[int(tensors["tokens"][:, :timestep].sum()) % 2], guided=False)
        pipe.guidance_scale = 2.0 + step % 2
        return {"negative_prompt_embeds": other.given, "negative_prompt_attention_mask": other.mask}

    made, seen = [], list[int]()
    for method, how in (("plain", {"shape": 9}), ("gs-sjd", {"k": 8, "shape": "one"})):
        made.append(codes(pipe, method, 0, call={"callback_on_step_end": steer, "steer_every": 48}, **how))
    assert torch.equal(made[0].images, made[1].images) and len(seen) == 12
    assert not torch.equal(made[0].images, codes(pipe, "plain", 0, shape=9).images)


@pytest.mark.slow
def test_codes_of_two_widths_part(pipe: Any) -> None:
    assert not torch.equal(codes(pipe, "plain", 0).images, codes(pipe, "plain", 0, shape=9).images)
