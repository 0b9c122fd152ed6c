"""Callbacks at fixed numbers of codes: a steered picture is the same whatever was drafted."""

import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from mmspec.core.decoder import Decoder
from mmspec.core.rules import Match
from mmspec.core.warp import Warp
from mmspec.kits.pictures.adaptive_negative import AdaptiveNegative
from mmspec.testing.toys.markov import MarkovTarget
from mmspec_image.pipeline import TextToImagePipeline

PROMPTS, SEEDS, EVERY = ["red heart", "blue cat face"], [7, 8], 3
METHODS: dict[str, dict[str, Any]] = {
    "gs-sjd": {"k": 9},
    "gs-sjd-pac": {"k": 5},
    "prompt-lookup": {},
    "token-recycling": {},
}


def fresh(pipe: Any, method: str, **how: Any) -> Any:
    made = TextToImagePipeline(**pipe.components)
    made.set_progress_bar_config(disable=True)
    return made.use(method, **how)


class Steering:
    """Leads away from another caption and changes the scale, by what the codes so far say; it notes what it saw."""

    def __init__(self, pipe: Any, rows: int) -> None:
        self.away = [pipe.encode_prompt(words, guided=False) for words in ("apple star cat", "red heart")]
        self.rows, self.seen = rows, list[Any]()

    def __call__(self, pipe: Any, step: int, timestep: int, tensors: dict[str, Any]) -> dict[str, Any]:
        torch.rand(1)  # a judge may draw
        tokens = tensors["tokens"]
        self.seen.append((step, timestep, (tokens >= 0).sum(1).tolist(), tokens.clone()))
        other = self.away[int(tokens[:, :timestep].sum()) % 2]
        pipe.guidance_scale = 2.0 + step % 3
        given = {"negative_prompt_embeds": other.given, "negative_prompt_attention_mask": other.mask}
        return {name: value.expand(self.rows, *value.shape[1:]) for name, value in given.items()}


def drawn(pipe: Any, method: str, rows: int, temperature: float, every: int | None = EVERY, **how: Any) -> Any:
    steering = Steering(pipe, rows)
    call = {"seed": SEEDS[:rows], "temperature": temperature, "steer_every": every, "output_type": "latent"}
    made = fresh(pipe, method, **how)(PROMPTS[:rows], guidance_scale=2.0, callback_on_step_end=steering, **call)
    return made, steering.seen


@pytest.mark.compiled
@pytest.mark.parametrize(
    ("rows", "temperature"),
    [(2, 1.0), pytest.param(1, 1.0, marks=pytest.mark.slow), pytest.param(2, 0.0, marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("method", METHODS)
def test_a_steered_picture_depends_on_no_draft(tiny: Any, method: str, rows: int, temperature: float) -> None:
    plain, seen = drawn(tiny, "plain", rows, temperature)
    ours, also = drawn(tiny, method, rows, temperature, **METHODS[method])
    assert torch.equal(ours.codes, plain.codes) and ours.report.rounds <= plain.report.rounds
    cells = plain.codes.flatten(1).shape[1]
    stops = [*range(EVERY, cells, EVERY), cells]
    assert [(step, at) for step, at, *_ in seen] == list(enumerate(stops, 1))
    assert all(known == [at] * rows for _, at, known, _ in also), "all pictures have as many codes"
    assert all(torch.equal(a, b) for (*_, a), (*_, b) in zip(seen, also, strict=True))


def test_after_every_round_a_picture_depends_on_the_method(tiny: Any) -> None:
    """So that the test above would see it."""
    made = [drawn(tiny, method, 2, 1.0, None, **METHODS.get(method, {}))[0].codes for method in ("plain", "gs-sjd")]
    assert not torch.equal(*made)


def test_a_callback_that_changes_nothing_changes_nothing(tiny: Any) -> None:
    pipe = fresh(tiny, "gs-sjd", k=9)
    alone = pipe(PROMPTS, seed=SEEDS, output_type="latent")
    shown = []

    def look(pipe: Any, step: int, timestep: int, tensors: dict[str, Any]) -> None:
        shown.append(tensors["preview"])

    names = ["tokens", "preview"]
    how = {"callback_on_step_end": look, "callback_on_step_end_tensor_inputs": names, "steer_every": 6}
    watched = pipe(PROMPTS, seed=SEEDS, output_type="latent", **how)
    assert torch.equal(watched.codes, alone.codes)
    assert torch.equal(shown[-1], pipe.pixels_of(alone.codes.flatten(1))) and not torch.equal(shown[0], shown[-1])


def test_rows_that_end_do_not_go_on_and_others_do() -> None:
    """Pauses of the loop itself: units with an end, compared with a call without pauses."""
    target = MarkovTarget.random(7, seed=2)
    prompt, how = torch.ones(6, 2).long(), {"seed": 4, "ends": 3, "warp": Warp.sampling()}
    whole = Decoder(target, None, Match(), k=0).generate(prompt, 20, **how)
    decoder, waited = Decoder(target, None, Match(), k=0), []
    for state in decoder.rounds(prompt, 20, pauses=[1, 5, 6], **how):
        waited += [list(state.host.emitted)] if state.waits else []
    assert all(torch.equal(a, b) for a, b in zip(state.output(), whole.units, strict=True))
    assert [max(each) for each in waited] == [1, 5, 6] and min(map(len, whole.units)) < 5


def test_bad_input(tiny: Any) -> None:
    for every, message in ((0, "at least 1, and not 0"), (-3, "not -3"), (2.5, "steer_every")):
        with pytest.raises(ValueError, match=message):
            tiny(PROMPTS, callback_on_step_end=lambda *given: None, steer_every=every)
    with pytest.raises(ValueError, match="depends on no round"):
        tiny(PROMPTS, steer_every=4, callback_on_step_end_tensor_inputs=["accepted"])
    for names, message in ((["accepted"], "depends on no round"), (["latents"], "has latents; there is tokens")):
        asking = Steering(tiny, 2)
        asking.tensor_inputs = names  # type: ignore[attr-defined]  # a callback may name them itself, as diffusers' do
        with pytest.raises(ValueError, match=message):
            tiny(PROMPTS, steer_every=4, callback_on_step_end=asking)
    with pytest.raises(TypeError, match="a dictionary or None, not list"):
        tiny(PROMPTS, steer_every=4, callback_on_step_end=lambda *given: [1])

    def broken(*given: Any) -> None:
        raise RuntimeError("no opinion")

    with pytest.raises(RuntimeError, match="no opinion"):
        tiny(PROMPTS, steer_every=4, callback_on_step_end=broken)


def test_a_judge_names_what_is_led_away_from(tiny: Any) -> None:
    """The picture is that of a callback that returns these negative prompts itself, with any method; answers add up."""
    asked: list[Any] = []
    answers = ["apple", "star", "cat", None, "Apple", "cat", "", None]

    def judge(picture: Image.Image) -> str | None:
        torch.rand(3)
        asked.append(picture)
        return answers[len(asked) - 1]

    made = []
    for method in ("plain", "gs-sjd"):
        asked.clear()
        torch.manual_seed(0)
        state, away = torch.get_rng_state(), AdaptiveNegative(judge)
        call = {"seed": SEEDS, "steer_every": 4, "output_type": "latent", "guidance_scale": 3.0}
        made.append(fresh(tiny, method)(PROMPTS, callback_on_step_end=away, **call).codes)
        assert torch.equal(torch.get_rng_state(), state), "the judge's draws have no effect"
        # Asked at 4, 8 and 12 codes, and about the whole pictures.
        assert len(asked) == 8 and [at for at, *_ in away.said] == [4, 4, 8, 12, 12]
    assert torch.equal(*made)

    def same(pipe: Any, step: int, timestep: int, tensors: dict[str, Any]) -> dict[str, Any]:
        null, mask = tensors["negative_prompt_embeds"], tensors["negative_prompt_attention_mask"]
        lists = {4: {0: "apple", 1: "star"}, 8: {0: "apple cat"}, 12: {1: "star cat"}}
        for row, words in lists.get(timestep, {}).items():
            other = pipe.encode_prompt(words, guided=False)
            null[row], mask[row] = other.given[0], other.mask[0]
        return {"negative_prompt_embeds": null, "negative_prompt_attention_mask": mask}

    names = ["negative_prompt_embeds", "negative_prompt_attention_mask"]
    how = {"callback_on_step_end": same, "callback_on_step_end_tensor_inputs": names}
    assert torch.equal(fresh(tiny, "plain")(PROMPTS, **call, **how).codes, made[0])
    with pytest.raises(TypeError, match="returned int; it returns words"):
        tiny(PROMPTS, callback_on_step_end=AdaptiveNegative(lambda picture: 3), **call)  # type: ignore[arg-type,return-value]
    with pytest.raises(ValueError, match="guidance_scale > 1"):
        tiny(PROMPTS, callback_on_step_end=AdaptiveNegative(judge), **{**call, "guidance_scale": 1.0})
    with pytest.raises(TypeError, match="a function of a picture, not str"):
        AdaptiveNegative("red")  # type: ignore[arg-type]


@pytest.mark.slow
def test_the_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    script, sheet = Path(__file__).parents[2] / "examples" / "adaptive_negative.py", tmp_path / "sheet.png"
    monkeypatch.setattr("sys.argv", [str(script), str(sheet)])
    runpy.run_path(str(script), run_name="__main__")
    assert Image.open(sheet).size == (6 * 64, 2 * 64) and "'large circle', 32, 'red'" in capsys.readouterr().out
