"""Pictures of language models, steered by negative prompts that change while they are drawn, in length, too."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from mmspec.hosts.guidance import GuidedCache
from mmspec.kits.pictures.adaptive_negative import AdaptiveNegative
from tests.image.test_janus_pipeline import folder  # noqa: F401  a fixture
from tests.image.test_janus_pipeline import pipe as janus  # noqa: F401
from tests.image.test_written_pipelines import PIPES, PROMPTS, anole, emu3, lumina  # noqa: F401

SIZES = {**PIPES, "janus": (8, 8)}
EVERY, SCALE = 5, 3.0
AWAY = ["a blue bird " * 30, "a red", None]
"""Far longer than the prompts, shorter, as before."""
METHODS: dict[str, dict[str, Any]] = {"gs-sjd": {"k": 6}, "prompt-lookup": {}, "token-recycling": {}}


SEEDS = {"janus": [5, 6]}
"""Of pictures in which drafts are accepted, where the usual ones are not."""


class Steering:
    """Chooses by the codes so far what every row leads away from; it notes what it said."""

    def __init__(self) -> None:
        self.said: dict[int, list[str | None]] = {}

    def __call__(self, pipe: Any, step: int, timestep: int, tensors: dict[str, Any]) -> dict[str, Any]:
        rows = tensors["tokens"][:, :timestep].sum(1)
        self.said[timestep] = [AWAY[(int(row) + step) % 3] for row in rows]
        return {"negative_prompt": self.said[timestep]}


def drawn(pipe: Any, name: str, rows: int, temperature: float, method: str, **how: Any) -> tuple[Any, Steering]:
    height, width = SIZES[name]
    steering, pipe = Steering(), pipe.use(method, **how)
    call: dict[str, Any] = dict(height=height, width=width, guidance_scale=SCALE, temperature=temperature)
    call |= dict(
        seed=SEEDS.get(name, [3, 4])[:rows], output_type="latent", steer_every=EVERY, callback_on_step_end=steering
    )
    return pipe(PROMPTS[:rows], **call), steering


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n in ("emu3", "anole") else n for n in SIZES]
)
def test_greedy_codes_are_those_of_whole_passes(name: str, request: pytest.FixtureRequest) -> None:
    """Every code comes of both halves read from their beginning, the negative prompt as it is by then."""
    pipe = request.getfixturevalue(name)
    made, steering = drawn(pipe, name, 2, 0.0, "gs-sjd", k=6)
    words = {text for said in steering.said.values() for text in said}
    assert len(words) > 1, "nothing was changed, so nothing was tested"
    (height, width), layout = SIZES[name], made.codes.flatten(1)
    for row in range(2):
        assert plain_loop(pipe, name, row, steering, (height // 2, width // 2)) == layout[row].tolist()


def plain_loop(pipe: Any, name: str, row: int, steering: Steering, size: tuple[int, int]) -> list[int]:
    pipe._size = size
    condition = pipe.encode_prompt(PROMPTS[row])
    null, mask = condition.guiding[2:]
    units, forced, allowed = list[int](), [-1] * 16, list[int]()
    if name == "janus":
        given, seen = condition.input_ids, condition.attention_mask
    else:
        given, seen = condition.inputs["input_ids"], condition.inputs["attention_mask"]
        forced, allowed = condition.constraint.forced.tolist(), condition.constraint.allowed.tolist()
    cells = list[int]()
    for only in forced:
        if len(units) in steering.said and (said := steering.said[len(units)][row]) is not None:
            null, mask = pipe.led_away([said], null, mask)
            mask = torch.ones_like(null) if mask is None else mask
        halves = [scores(pipe, name, ids[0][m[0].bool()], units) for ids, m in ((given, seen), (null, mask))]
        logits = halves[1] + SCALE * (halves[0] - halves[1])
        best = int(logits.argmax()) if not allowed else allowed[int(logits[allowed].argmax())]
        units.append(best if only < 0 else only)
        cells += [best] if only < 0 else []
    return cells


@torch.no_grad()
def scores(pipe: Any, name: str, prompt: Tensor, units: list[int]) -> Tensor:
    """Of the next unit: one whole pass of the model."""
    if name != "janus":
        found: Tensor = pipe.model(input_ids=torch.cat([prompt, torch.tensor(units).long()])[None]).logits[0, -1]
        return found
    inner = pipe.model.model
    embeds = inner.get_input_embeddings()(prompt)
    if units:
        codes = pipe.model.prepare_embeddings_for_image_generation(torch.tensor([units]))[0]
        embeds = torch.cat([embeds, codes])
    hidden = inner.language_model(inputs_embeds=embeds[None], use_cache=False).last_hidden_state
    last: Tensor = inner.generation_head(hidden[0, -1])
    return last


@pytest.mark.compiled
@pytest.mark.parametrize(("rows", "temperature"), [(2, 1.0), pytest.param(1, 1.0, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "method", ["gs-sjd", *(pytest.param(m, marks=pytest.mark.slow) for m in ("prompt-lookup", "token-recycling"))]
)
@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n == "janus" else pytest.mark.slow) for n in SIZES])
def test_a_steered_picture_depends_on_no_draft(
    name: str, method: str, rows: int, temperature: float, request: pytest.FixtureRequest
) -> None:
    pipe = request.getfixturevalue(name)
    plain, said = drawn(pipe, name, rows, temperature, "plain")
    ours, also = drawn(pipe, name, rows, temperature, method, **METHODS[method])
    assert torch.equal(ours.codes, plain.codes) and also.said == said.said
    assert ours.report.row_rounds < plain.report.row_rounds or (rows, method) != (2, "gs-sjd")


def test_a_judge_may_look_at_any_pipeline(lumina: Any) -> None:  # noqa: F811
    away = AdaptiveNegative(lambda picture: "a blue bird" if picture.size == (12, 8) else None)
    call: dict[str, Any] = dict(height=8, width=12, seed=3, guidance_scale=SCALE, output_type="latent", steer_every=7)
    steered, alone = lumina("a red fox", callback_on_step_end=away, **call), lumina("a red fox", **call)
    assert not torch.equal(steered.codes, alone.codes)
    assert [at for at, *_ in away.said] == [7, 14, 21, 28, 29] and torch.equal(steered.codes[:, 0], alone.codes[:, 0])


def answering(answer: Any) -> Callable[..., Any]:
    return lambda *given: {"negative_prompt": answer}


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (["a fox"] * 3, "a list of a text, or None, for each of 2 rows"),
        ("a fox", "a list of a text, or None, for each of 2 rows, and not 'a fox'"),
        ([3, None], "a list of a text, or None"),
    ],
)
def test_bad_input(anole: Any, answer: Any, said: str) -> None:  # noqa: F811
    call: dict[str, Any] = dict(seed=3, steer_every=4, callback_on_step_end=answering(answer))
    with pytest.raises(ValueError, match=said):
        anole(PROMPTS, guidance_scale=SCALE, **call)


def test_without_guidance_there_is_nothing_to_renew(anole: Any) -> None:  # noqa: F811
    call: dict[str, Any] = dict(seed=3, steer_every=4, callback_on_step_end=answering(["a fox"]))
    with pytest.raises(ValueError, match="there is no unconditional half"):
        anole("a red fox", guidance_scale=1.0, **call)
    target = anole.decoder().target
    start = target.start(anole.encode_prompt("a red fox", guided=False).inputs, 4, 1)
    assert isinstance(start.cache.guidance, GuidedCache)
    with pytest.raises(ValueError, match="began without guidance"):
        target.renew_null(start.cache, torch.ones(1, 2).long(), None, torch.zeros(1, 0).long())
