"""Captured rounds on CUDA: one graph a plan, equal to the eager loop, whatever the lengths and however rows end."""

from typing import Any

import pytest
import torch
from transformers import LlamaConfig

from mmspec.api.build import decoder_for
from mmspec.core.compile.pool import MOST, NAME
from mmspec.core.decoder import Decoder
from mmspec.core.warp import Warp
from mmspec.testing.tiny_models import SIZES
from tests.support.random_models import noisy, random_model

pytestmark = pytest.mark.gpu
METHODS: dict[str, dict[str, Any]] = {
    "prompt-lookup": {"k": 7},
    "suffix": {"k": 7},
    "token-recycling": {"k": 4},
    "cascade": {"k": 5},
}


@pytest.fixture(params=[None, True], ids=["recorded", "compiled"])
def inductor(request: pytest.FixtureRequest) -> bool | None:
    """Graphs hold rounds as they are, or compiled ones: the argument `compile`."""
    compile: bool | None = request.param
    return compile


@pytest.fixture(scope="module", params=[torch.float32, torch.bfloat16], ids=str)
def model(request: pytest.FixtureRequest) -> Any:
    config = LlamaConfig(**{**SIZES, "vocab_size": 61, "max_position_embeddings": 1024})
    return random_model(config, gain=4.0).to("cuda", request.param)


def prompts(length: int = 20) -> dict[str, Any]:
    torch.manual_seed(1)
    ids = torch.randint(2, 61, (3, 5), device="cpu").repeat(1, length // 5)
    mask = torch.ones_like(ids)
    mask[1, : length // 2] = 0
    return {"input_ids": (ids * mask).cuda(), "attention_mask": mask.cuda()}


def pair(model: Any, method: str, compile: bool | None) -> tuple[Decoder, Decoder]:
    vars(model).pop(NAME, None)
    decoder = decoder_for(model, method, compile=compile, **METHODS[method])
    return decoder, decoder_for(model, "plain", shape=decoder.one_width(), compile=compile)


def captured(found: Any) -> bool:
    """True if a call ran on graphs."""
    return bool(found.report.compiled or found.report.recorded)


def equal(found: Any, expected: Any) -> bool:
    return all(torch.equal(a, b) for a, b in zip(found.units, expected.units, strict=True))


@pytest.mark.parametrize("method", METHODS)
def test_drafts_do_not_change_the_text(model: Any, inductor: bool | None, method: str) -> None:
    decoder, plain = pair(model, method, inductor)
    for seed in range(4):
        found, expected = (d.generate(prompts(), 48, seed=seed, warp=Warp.sampling(0.9)) for d in (decoder, plain))
        assert captured(found) and captured(expected) and equal(found, expected)


def test_the_bucket_changes_with_the_length(model: Any, inductor: bool | None) -> None:
    decoder, plain = pair(model, "prompt-lookup", inductor)
    for length in (20, 300, 40, 600):
        assert equal(*(d.generate(prompts(length), 32, seed=length) for d in (decoder, plain)))
    kept = MOST["recorded"] if inductor is None else 2 * 3
    assert len(decoder.captures.pool.rounds) == kept, "a bucket has a round of each decoder: the model keeps both"


def test_a_batch_that_shrinks_to_nothing(model: Any, inductor: bool | None) -> None:
    decoder, plain = pair(model, "prompt-lookup", inductor)
    for ends in ([7], list(range(0, 61, 3)), list(range(61))):
        assert equal(*(d.generate(prompts(), 48, seed=5, ends=ends) for d in (decoder, plain)))


def test_a_thousand_rounds_of_one_graph(model: Any, inductor: bool | None) -> None:
    decoder, plain = pair(model, "prompt-lookup", inductor)
    rounds = 0
    for seed in range(60):
        found = decoder.generate(prompts(), 40 - seed % 9, seed=seed)
        rounds += found.report.rounds
        if seed % 10 == 0:
            assert equal(found, plain.generate(prompts(), 40 - seed % 9, seed=seed))
    assert rounds >= 1000 and len(decoder.captures.pool.rounds) == 2, "one of each decoder: the model keeps both"


@pytest.mark.parametrize(("method", "how"), [("draft-model", {"rule": "rejection"}), ("rsd", {})])
def test_rules_that_draw_fresh_numbers(model: Any, inductor: bool | None, method: str, how: dict[str, Any]) -> None:
    """Graphs compute the numbers from key and position: a call repeats itself, and another seed gives another text."""
    vars(model).pop(NAME, None)
    drafter = noisy(model, 0.3)
    decoder = decoder_for(model, method, drafter=drafter, k=3, compile=inductor, **how)
    found = [decoder.generate(prompts(), 48, seed=seed, warp=Warp.sampling(0.9)) for seed in (1, 2, 1)]
    assert all(map(captured, found)) and len(decoder.captures.pool.rounds) == 1
    assert equal(found[0], found[2]) and not equal(found[0], found[1])


@pytest.mark.parametrize("method", ["prompt-lookup", "token-recycling"])
def test_reading_late_changes_nothing(model: Any, inductor: bool | None, method: str) -> None:
    """The round that drafts by itself, against the same rounds with their drafts from outside, read at once."""
    late, watched = (pair(model, method, inductor)[0] for _ in range(2))
    for seed in range(4):
        call: dict[str, Any] = {"seed": seed, "warp": Warp.sampling(0.9), "ends": [7]}
        found = late.generate(prompts(), 48, **call)
        expected = watched.generate(prompts(), 48, **call, on_step=lambda state: None)
        assert equal(found, expected)
        assert found.report.rounds == expected.report.rounds and found.report.sizes == expected.report.sizes
        assert found.report.drafted == expected.report.drafted and found.report.accepted == expected.report.accepted


def test_a_memory_outlives_its_binding(model: Any, inductor: bool | None) -> None:
    """A drafter that is bound again has new memory; a graph that was recorded before must not read the old one."""
    decoder = pair(model, "token-recycling", inductor)[0]
    expected = decoder.generate(prompts(), 48, seed=1)
    for _ in range(3):
        decoder.drafter.bind(decoder.target)
        assert equal(decoder.generate(prompts(), 48, seed=1), expected)
