"""Callbacks: what they see, what they may change, and how a call stops."""

import pytest
import torch

from mmspec.core.distributions import Categorical
from mmspec.core.philox import PhiloxSource
from mmspec.kits.pictures.rounds import completed
from mmspec_image.pipeline import TextToImagePipeline

PROMPTS = ["red heart", "blue cat face"]
SEEDS = [7, 8]


def fresh(pipe, method="gs-sjd", **how):
    made = TextToImagePipeline(**pipe.components)
    made.set_progress_bar_config(disable=True)
    return made.use(method, **how)


def test_a_callback_sees_every_round(tiny):
    seen = []

    def watch(pipe, step, timestep, tensors):
        seen.append((step, timestep, tensors["tokens"].clone(), tensors["accepted"].clone()))
        assert pipe is tiny and set(tensors) == {"tokens", "accepted"}
        return tensors

    made = tiny(
        PROMPTS, seed=SEEDS, callback_on_step_end=watch, callback_on_step_end_tensor_inputs=["tokens", "accepted"]
    )
    assert [step for step, *_ in seen] == list(range(made.report.rounds + 1))
    for step, timestep, tokens, accepted in seen:
        there = made.rounds.flatten(1) <= step
        assert torch.equal(tokens, torch.where(there, made.codes.flatten(1), -1))
        assert timestep == there.sum(1).min()
        new = (made.rounds.flatten(1) == step).sum(1)
        assert torch.equal(accepted, (new - 1).clamp(min=0))
    assert sum(int(accepted.sum()) for *_, accepted in seen) == made.report.accepted > 0


def forced(model, condition, nulls, scales):
    """Plain sampling by teacher forcing; at cell t row b leads away from `nulls(t, b)` by `scales(t, b)`."""
    rows, cells = len(condition.given), model.cells
    codes = torch.zeros(rows, cells, dtype=torch.int64)
    source = PhiloxSource.seeded(SEEDS, rows)
    for t in range(cells):
        source.begin([t] * rows)
        away = [nulls(t, b) for b in range(rows)]
        with torch.no_grad():
            there = model(condition.given, codes, condition.mask)[:, t]
            null = model(torch.stack([a for a, _ in away]), codes, torch.stack([m for _, m in away]))[:, t]
        scale = torch.tensor([[scales(t, b)] for b in range(rows)])
        distribution = Categorical.of_logits((null + scale * (there - null))[:, None])
        codes[:, t] = distribution.draw(source.by_position(torch.full((rows,), t), [t] * rows, 0))[:, 0]
    return codes


@pytest.mark.thinned(1)
@pytest.mark.compiled
@pytest.mark.parametrize("method", ["plain", "gs-sjd"])
@pytest.mark.parametrize("change", ["negative", "guidance", "both", "negative, before any code is committed"])
def test_what_a_callback_changes_holds_from_the_next_round_on(tiny, method, change):
    """The unconditional half is as if it had always been the new one; codes that stand, stand."""
    other = tiny.encode_prompt("apple star cat", guided=False)
    switched = []

    def turn(pipe, step, timestep, tensors):
        known = (tensors["tokens"] >= 0).sum(1).tolist()
        apart = known[0] != known[1] or method == "plain"
        early = "before" in change
        if switched or not (early or (timestep >= 4 and apart)):
            return {}
        switched.extend(known)
        if "negative" not in change:
            pipe.guidance_scale = 4.5
        if change == "guidance":
            return tensors
        null, mask = other.given.expand(2, -1, -1), other.mask.expand(2, -1)
        return {"negative_prompt_embeds": null, "negative_prompt_attention_mask": mask}

    pipe = fresh(tiny, method)
    made = pipe(PROMPTS, seed=SEEDS, guidance_scale=2.0, callback_on_step_end=turn).codes.flatten(1)
    condition = pipe.encode_prompt(PROMPTS)

    def null(t, b):
        late = t >= switched[b] and change != "guidance"
        return (other.given[0], other.mask[0]) if late else (condition.null[b], condition.null_mask[b])

    def scale(t, b):
        return 4.5 if t >= switched[b] and "negative" not in change else 2.0

    expected = forced(pipe.transformer, condition, null, scale)
    assert torch.equal(made, expected)
    assert not torch.equal(made, pipe(PROMPTS, seed=SEEDS, guidance_scale=2.0).codes.flatten(1)), "nothing was changed"
    assert len(switched) == 2, "rows were never apart"


def test_a_negative_prompt_may_be_shorter(tiny):
    """Features without padding, of fewer positions than the model reads, are those with padding and a mask."""
    other = tiny.encode_prompt("apple star cat", guided=False)
    short, call = other.given[other.mask].expand(2, -1, -1), dict(seed=SEEDS, guidance_scale=2.0)
    assert 0 < short.shape[1] < other.given.shape[1]
    shown = []

    def drawn(*null):
        def turn(pipe, step, timestep, tensors):
            shown.append(tensors["negative_prompt_embeds"].shape[1])
            return dict(zip(names, null, strict=False)) if timestep >= 5 else {}

        names = ["negative_prompt_embeds", "negative_prompt_attention_mask"]
        how = dict(callback_on_step_end=turn, callback_on_step_end_tensor_inputs=names)
        return fresh(tiny)(PROMPTS, **call, **how, steer_every=5).codes

    padded = drawn(other.given.expand(2, -1, -1), other.mask.expand(2, -1))
    assert set(shown) == {6}
    assert torch.equal(drawn(short), padded) and shown[-1] == short.shape[1]
    named = tiny(PROMPTS, **call, negative_prompt="apple star cat").codes
    assert torch.equal(tiny(PROMPTS, **call, negative_prompt_embeds=short[:1]).codes, named)
    assert not torch.equal(padded, named), "from the fifth code on is not from the first"
    with pytest.raises(ValueError, match="reads 6 positions"):
        drawn(torch.zeros(2, 7, 12))


def test_a_change_in_place_is_seen(tiny):
    def zero(pipe, step, timestep, tensors):
        if step == 2:
            tensors["negative_prompt_embeds"].zero_()
        return tensors

    names = ["negative_prompt_embeds", "negative_prompt_attention_mask"]
    changed = tiny(PROMPTS, seed=SEEDS, callback_on_step_end=zero, callback_on_step_end_tensor_inputs=names).codes
    assert not torch.equal(changed, tiny(PROMPTS, seed=SEEDS).codes)


def test_classes_to_lead_away_from_can_change(tiny_classes):
    def turn(pipe, step, timestep, tensors):
        return {"negative_prompt_embeds": torch.tensor([2, 2])} if step == 3 else {}

    call = dict(class_labels=[1, 2], seed=SEEDS)
    changed = tiny_classes(**call, callback_on_step_end=turn)
    other = fresh(tiny_classes, "plain")(**call)
    early = changed.rounds <= 3
    assert torch.equal(changed.codes[early], other.codes[early]) and not torch.equal(changed.codes, other.codes)


def test_a_call_can_be_stopped_after_any_round(tiny):
    whole = tiny(PROMPTS, seed=SEEDS)

    def stop(last):
        def callback(pipe, step, timestep, tensors):
            pipe._interrupt = step == last
            return tensors

        return callback

    for last in range(whole.report.rounds + 1):
        part = tiny(PROMPTS, seed=SEEDS, callback_on_step_end=stop(last))
        there = whole.rounds <= last
        assert torch.equal(part.rounds, torch.where(there, whole.rounds, -1))
        assert torch.equal(part.codes[there], whole.codes[there])
        assert part.report.emitted == int(there.sum()) and part.report.rounds == last
        assert [picture.size for picture in part.images] == [(8, 8)] * 2
        assert tiny.interrupt
    assert torch.equal(tiny(PROMPTS, seed=SEEDS).codes, whole.codes) and not tiny.interrupt


def test_what_was_not_reached_repeats_what_stands_above():
    codes = torch.tensor([[1, 2, 3, 4, 5, -1, -1, -1, -1], [7, 8, -1, -1, -1, -1, -1, -1, -1], [*range(9)]])
    assert completed(codes, codes >= 0, 3).tolist() == [
        [1, 2, 3, 4, 5, 3, 4, 5, 3],
        [7, 8, 8, 7, 8, 8, 7, 8, 8],
        [*range(9)],
    ]


REFUSED = {
    "codes": (lambda pipe, tensors: {"tokens": tensors["tokens"] * 0}, "returned other tokens: what is emitted stands"),
    "names": (lambda pipe, tensors: {"latents": 1}, "has latents; there is tokens"),
    "shape": (
        lambda pipe, tensors: {"negative_prompt_embeds": torch.zeros(1, 6, 12)},
        r"is \[2, 6, 12\], the callback",
    ),
    "none": (lambda pipe, tensors: {"negative_prompt_embeds": None}, "there is no unconditional half"),
    "guidance": (
        lambda pipe, tensors: setattr(pipe, "guidance_scale", 0.5),
        "guidance_scale must be a finite number >= 1",
    ),
    "nan": (
        lambda pipe, tensors: setattr(pipe, "_guidance_scale", float("nan")),
        "must be a finite number >= 1, got nan",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_callback_may_not(tiny, case):
    does, says = REFUSED[case]
    with pytest.raises(ValueError, match=says):
        tiny(PROMPTS, seed=1, callback_on_step_end=lambda pipe, step, timestep, tensors: does(pipe, tensors))


def test_a_call_without_guidance_stays_without(tiny):
    def guide(pipe, step, timestep, tensors):
        pipe.guidance_scale = 2.0

    with pytest.raises(ValueError, match=r"began without guidance .1., so a callback cannot make it 2\.0"):
        tiny(PROMPTS, seed=1, guidance_scale=1.0, callback_on_step_end=guide)

    def away(pipe, step, timestep, tensors):
        return {"negative_prompt_embeds": torch.zeros(2, 6, 12)}

    with pytest.raises(ValueError, match="there is no unconditional half"):
        tiny(PROMPTS, seed=1, guidance_scale=1.0, callback_on_step_end=away)


def test_the_progress_bar_counts_codes(tiny, capsys):
    pipe = TextToImagePipeline(**tiny.components).use("gs-sjd", k=6)
    pipe(PROMPTS, seed=1)
    assert "32/32" in capsys.readouterr().err
    pipe.set_progress_bar_config(disable=True)
    pipe(PROMPTS, seed=1)
    assert capsys.readouterr().err == ""
