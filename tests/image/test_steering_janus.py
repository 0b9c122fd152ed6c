"""Janus steered while it draws: negative prompts of any length, and a picture that depends on no draft."""

from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor

import mmspec
from mmspec.core.distributions import Categorical
from mmspec.core.philox import PhiloxSource
from mmspec.core.types import Draft
from mmspec.hosts.buffer_cache import BufferCache
from mmspec_image.janus_pipeline import JanusPipeline
from mmspec_image.models.janus import JanusPrompt
from mmspec_image.targets.janus import JanusTarget
from tests.image.test_janus import CODES, IDS, PADDED, forced
from tests.support.examples.image import tiny_janus

PROMPTS, SEEDS, EVERY = ["a red fox", "bird", "a blue bird fox"], [5, 6, 7], 4
AWAY = ["fox", "a blue blue bird red a fox a", "bird " * 70]
"""Shorter and longer than the prompts; and longer than the slots that the call had in the beginning."""
NULL, NULL_MASK = "negative_prompt_embeds", "negative_prompt_attention_mask"


@pytest.fixture(scope="module")
def pipe(janus_processor: Any) -> Any:
    pipe = JanusPipeline(tiny_janus(24, 4), janus_processor)
    pipe.set_progress_bar_config(disable=True)
    return pipe


class Steering:
    """Leads every picture away from words that its codes choose, by a scale that changes, too."""

    def __init__(self, pipe: Any) -> None:
        self.words = [pipe.encode_prompt(words, guided=False) for words in AWAY]
        self.said: dict[int, tuple[list[Tensor], float]] = {}

    def __call__(self, pipe: Any, step: int, timestep: int, tensors: dict[str, Any]) -> dict[str, Any]:
        chosen = [self.words[int(row[:timestep].sum()) % len(AWAY)].input_ids[0] for row in tensors["tokens"]]
        pipe.guidance_scale = 2.0 + step % 2
        self.said[timestep] = chosen, pipe.guidance_scale
        longest = max(map(len, chosen))
        ids = torch.stack([torch.nn.functional.pad(ids, (longest - len(ids), 0)) for ids in chosen])
        return {NULL: ids, NULL_MASK: (ids != 0).long()}


def drawn(pipe: Any, method: str, rows: int, temperature: float, **how: Any) -> tuple[Any, Steering]:
    steering = Steering(pipe)
    call = {"seed": SEEDS[:rows], "temperature": temperature, "steer_every": EVERY, "output_type": "latent"}
    made = pipe.use(method, **how)(PROMPTS[:rows], guidance_scale=2.0, callback_on_step_end=steering, **call)
    return made, steering


@torch.no_grad()
def written_out(pipe: Any, rows: int, temperature: float, said: dict[int, tuple[list[Tensor], float]]) -> Tensor:
    """Plain drawing, in which both halves are read from their beginning for every code: `[row, 16]`."""
    prompts = pipe.encode_prompt(PROMPTS[:rows])
    words = [ids[seen.bool()] for ids, seen in zip(prompts.input_ids, prompts.attention_mask, strict=True)]
    away = [ids[seen.bool()] for ids, seen in zip(prompts.negative_ids, prompts.negative_mask, strict=True)]
    codes, source, scale = torch.zeros(rows, 16).long(), PhiloxSource.seeded(SEEDS[:rows], rows), 2.0
    for t in range(16):
        away, scale = said.get(t, (away, scale))
        there, null = (
            torch.stack([forced(pipe.model, ids, row)[t] for ids, row in zip(half, codes, strict=True)])
            for half in (words, away)
        )
        scores = (null + scale * (there - null))[:, None]
        source.begin([t] * rows)
        noise = source.by_position(torch.full((rows,), t), [t] * rows, 0)
        codes[:, t] = (Categorical.of_logits(scores).draw(noise) if temperature else scores.argmax(-1))[:, 0]
    return codes


SLOW = pytest.mark.slow


@pytest.mark.compiled
@pytest.mark.parametrize(
    "method", ["gs-sjd", *(pytest.param(method, marks=SLOW) for method in ("plain", "prompt-lookup"))]
)
@pytest.mark.parametrize(
    ("rows", "temperature"),
    [(3, 1.0), pytest.param(1, 1.0, marks=SLOW), pytest.param(3, 0.0, marks=SLOW)],
)
def test_a_steered_picture_is_the_one_that_is_written_out(
    pipe: Any, method: str, rows: int, temperature: float
) -> None:
    ours, steering = drawn(pipe, method, rows, temperature, **({"k": 5} if method == "gs-sjd" else {}))
    codes = ours.codes.flatten(1)
    assert torch.equal(codes, written_out(pipe, rows, temperature, steering.said))
    assert [*steering.said] == [4, 8, 12, 16] and ours.report.method == method
    lengths = [{len(ids) for ids in ids_of_rows} for ids_of_rows, _ in steering.said.values()]
    assert rows == 1 or max(map(len, lengths)) > 1, "rows have negative prompts of one length"
    alone = pipe(PROMPTS[:rows], guidance_scale=2.0, seed=SEEDS[:rows], temperature=temperature, output_type="latent")
    assert not torch.equal(codes, alone.codes.flatten(1)), "nothing was changed"


@pytest.mark.parametrize("captured", [False, True])
def test_the_unconditional_half_is_as_if_it_had_always_been_the_new_one(pipe: Any, captured: bool) -> None:
    """Rows that have committed different numbers of codes; behind other lengths, truncation counts codes as ever."""
    target, ids = JanusTarget(pipe.model), torch.full((3, 80), 5)
    ids[:, 0], ids[:, -1], ids[1, :76], ids[2, :70] = 1, 2, 0, 0
    started = target.start(JanusPrompt(IDS, PADDED), 16, 3)
    cache = started.cache
    if captured:
        cache = target.held(cache, 3).load(cache)
    count, before = torch.tensor([4, 1, 3]), len(cache.slots.owning[0].keys[0, 0])
    draft = Draft.tree(CODES[:, 1:4], [-1, 0, 1]).rooted(CODES[:, 0], torch.full((3,), 9))
    target.verify(cache, draft)
    target.commit(cache, torch.arange(1, 4).expand(3, -1), count)
    for away in (ids[:, 70:], ids, ids[:, 74:]):
        target.renew_null(cache, away, (away != 0).long(), CODES[:, :4])
        output = target.verify(cache, Draft.alone(CODES.gather(1, count[:, None])[:, 0]))
        with torch.no_grad():
            for row, n in enumerate(count.tolist()):
                for ours, half in ((output.logits, IDS), (output.null, away)):
                    theirs = forced(pipe.model, half[row][half[row] != 0], CODES[row])[n + 1]
                    torch.testing.assert_close(ours[row, 0], theirs, rtol=1e-4, atol=1e-4)
    assert len(cache.slots.owning[0].keys[0, 0]) > before and isinstance(cache.slots, BufferCache) == captured
    target.truncate(cache, torch.tensor([1, 1, 2]))
    output = target.verify(cache, Draft.alone(CODES[torch.arange(3), torch.tensor([1, 1, 2])]))
    with torch.no_grad():
        theirs = forced(pipe.model, away[2][away[2] != 0], CODES[2])[3]
    torch.testing.assert_close(output.null[2, 0], theirs, rtol=1e-4, atol=1e-4)


def test_a_judge_names_what_janus_is_led_away_from(pipe: Any) -> None:
    """Its words, longer than the prompts, are led away from; another picture's negative prompt stays as it is."""
    words, made = "blue blue bird red fox", []

    def judge() -> Any:
        seen: list[Image.Image] = []
        return lambda picture: (seen.append(picture), words if len(seen) in (2, 4) else None)[1]

    call = {"seed": SEEDS[:2], "steer_every": EVERY, "output_type": "latent", "guidance_scale": 3.0}
    for method in ("plain", "gs-sjd"):
        away = mmspec.AdaptiveNegative(judge())
        made.append(pipe.use(method)(PROMPTS[:2], callback_on_step_end=away, **call).codes)
        assert [(at, row) for at, row, _ in away.said] == [(4, 1), (8, 1)]
    assert torch.equal(*made)
    assert torch.equal(made[0][0], pipe(PROMPTS[0], **{**call, "seed": SEEDS[0], "steer_every": None}).codes[0])

    def turn(pipe: Any, step: int, timestep: int, tensors: dict[str, Any]) -> dict[str, Any]:
        own, new = tensors[NULL], pipe.encode_prompt(words, guided=False).input_ids
        if timestep != 4:
            return {}
        ids = torch.nn.functional.pad(own, (new.shape[1] - own.shape[1], 0))
        mask = torch.nn.functional.pad(tensors[NULL_MASK], (new.shape[1] - own.shape[1], 0))
        return {NULL: torch.cat([ids[:1], new]), NULL_MASK: torch.cat([mask[:1], torch.ones_like(new)])}

    how = {"callback_on_step_end": turn, "callback_on_step_end_tensor_inputs": [NULL, NULL_MASK]}
    assert torch.equal(pipe.use("gs-sjd")(PROMPTS[:2], **how, **call).codes, made[0])


REFUSED: dict[str, tuple[Any, str]] = {
    "rows": (lambda ids: {NULL: ids[:1].repeat(3, 1)}, r"is \[2, \d+\], the callback made it \[3, \d+\]"),
    "mask": (lambda ids: {NULL: ids[:, 1:], NULL_MASK: ids}, "return a mask of that length"),
    "words": (lambda ids: {NULL: ids + 99}, "outside the model's vocabulary"),
    "nothing": (lambda ids: {NULL: ids[:, :0]}, "an empty prompt"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_led_away_from_is_refused(pipe: Any, case: str) -> None:
    does, says = REFUSED[case]
    how = {"callback_on_step_end_tensor_inputs": [NULL], "steer_every": EVERY, "guidance_scale": 2.0}
    with pytest.raises(ValueError, match=says):
        pipe(PROMPTS[:2], callback_on_step_end=lambda pipe, step, at, tensors: does(tensors[NULL]), **how)


def test_a_call_without_guidance_has_nothing_to_lead_away_from(pipe: Any) -> None:
    ids = torch.tensor([[1, 4, 2]])
    with pytest.raises(ValueError, match="there is no unconditional half"):
        pipe("a fox", guidance_scale=1.0, callback_on_step_end=lambda *given: {NULL: ids})
    target = JanusTarget(pipe.model)
    with pytest.raises(ValueError, match="began without guidance"):
        target.renew_null(target.start(JanusPrompt(ids, guided=False), 16, 1).cache, ids, None, ids[:, :0])
