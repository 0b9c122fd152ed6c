"""What is asked of a case beside equality with plain decoding, and how drawings are compared."""

import copy
import pickle
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

import mmspec
from mmspec.compare.equality import NEAR_TIE
from mmspec.core.decoder import Decoder
from mmspec.core.goodput import Goodput
from mmspec.core.guided import NULL_INPUTS
from mmspec.core.payoff import Payoff
from mmspec.core.state import State
from tests.draws.claim import Broken, Case
from tests.draws.picture_calls import arguments, fresh, generator, how, steered
from tests.draws.picture_models import KINDS

ROUNDING = 1e-3
"""Of continuous units, beside the largest: sums over other numbers of rows and nodes, through several layers."""
ROUNDED, TRIALS = 1e-5, 64
"""Of the largest score, and random moves of scores by so much that are tried."""
SEVERAL = 192
"""Pictures of which distributions are compared."""
APART = 6.0
"""Standard errors by which means of equal distributions never differ."""


@dataclass
class Drawing:
    """What a call drew.

    Attributes:
        units: `[row, …]`: codes, tokens, or frames.
        images: As the call's `output_type` says.
        report: Of the call.
        state: The decoder's last state; None: it kept none.
        start: The decoder, and how it began: inputs, limit, and options.
        every: Units between two changes of guidance; None: it stays.
    """

    units: Tensor
    images: Any
    report: Any
    state: Any = None
    start: tuple[Any, Any, int, dict[str, Any]] | None = None
    every: int | None = None


def drawing(pipe: Any, call: dict[str, Any]) -> Drawing:
    """What a call draws, and how its decoder began."""
    begun, real = list[Any](), Decoder.start

    def start(self: Decoder, inputs: Any, limit: int, **options: Any) -> Any:
        state = real(self, inputs, limit, **options)
        if not isinstance(inputs, State):  # a drafter's own calls go on from the call's
            begun.append((state, (self, inputs, limit, options)))
        return state

    with patch.object(Decoder, "start", start):
        out = pipe(**call)
    if "frames" in out:
        found = Drawing(pixels(out.frames), None, out.report)
    else:
        found = Drawing(out.tokens if "tokens" in out else out.codes, pixels(out.images), out.report)
    found.every = call.get("steer_every")
    if begun:
        found.state, found.start = begun[-1]
    return found


def pixels(shown: Any) -> Tensor:
    """Pictures or films of any output type as a tensor."""
    if isinstance(shown, Tensor):
        return shown
    if isinstance(shown, list):
        return torch.stack([pixels(each) for each in shown])
    import numpy as np

    return torch.from_numpy(np.asarray(shown).copy())


def again(case: Case, pipe: Any, call: dict[str, Any] | None = None) -> Drawing:
    """The case's call once more, or another one, by its method."""
    return drawing(pipe.use(case["method"], **how(case, pipe)), arguments(case, pipe) if call is None else call)


def compared(plain: Drawing, ours: Drawing, exact: bool = False) -> str:
    """`equal` or `rounding`.

    Raises:
        Broken: They differ by more.
    """
    right, mine = plain.units, ours.units
    if right.shape != mine.shape:
        raise Broken(f"it has the shape {list(mine.shape)}, plain's has {list(right.shape)}")
    if torch.equal(right, mine):
        if plain.images is not None and not torch.equal(plain.images, ours.images):
            raise Broken("units are equal, and pictures are not")
        return "equal"
    if right.is_floating_point():
        apart, largest = float((right.float() - mine.float()).abs().max()), float(right.float().abs().max())
        if exact or not apart <= ROUNDING * largest:
            raise Broken(f"units are {apart:.2g} apart, of up to {largest:.2g}")
        return "rounding"
    row, place = (int(each) for each in (right.flatten(1) != mine.flatten(1)).nonzero()[0])
    if exact:
        raise Broken(f"row {row}, unit {place}: {int(mine.flatten(1)[row, place])}, and plain's another, in one shape")
    if not explained(plain, ours, row):
        raise Broken(f"row {row}, unit {place}: {int(mine.flatten(1)[row, place])}, which no rounding explains")
    return "rounding"


def explained(plain: Drawing, ours: Drawing, row: int) -> bool:
    """True where rounding of the unmodified model's scores gives the first unit of a row that differs.

    Filters decide by sums of probabilities, so that the margin of a draw alone does not show it: scores are moved at
    random, by as much as rounding moves them, and drawn from again with the noise of that position.
    """
    if plain.start is None or plain.state is None:
        return False
    decoder, inputs, limit, options = plain.start
    mine, right = (each.state.history[row, each.state.prompt_length :] for each in (ours, plain))
    both = min(len(mine), len(right))
    position = int((mine[:both] != right[:both]).int().argmax())
    if position == 0:
        return False  # the prefill is the same pass in both
    decoder = Decoder(decoder.target)
    state, outputs, verify = decoder.start(inputs, limit, **options), list[Any](), decoder.target.verify
    while state.host.emitted[row] < position:
        decoder.advance(state)
    if plain.every and position >= plain.every and state.warp.guidance is not None:
        state.warp = replace(state.warp, guidance=steered(position // plain.every))

    def kept(*given: Any) -> Any:
        outputs.append(verify(*given))
        return outputs[-1]

    with patch.object(decoder.target, "verify", kept):
        pending = decoder.speculate(state)
    noise, moves = state.round().by_position(pending.draft.index), generator(0)
    for trial in range(TRIALS):
        size = ROUNDED * (trial % 4 + 1) / 4
        scores = state.warp(moved(outputs[-1], size, moves), pending.draft, state.prefix)
        law: Any = scores.distribution
        chances = law.race(noise) if state.warp.sample else scores.logits
        if int(chances[row, 0].argmax()) == int(mine[position]):
            return True
    return False


def moved(output: Any, size: float, moves: torch.Generator) -> Any:
    """An output whose scores are moved by a part of the largest."""

    def other(logits: Tensor) -> Tensor:
        largest = logits.masked_fill(~logits.isfinite(), 0).abs().max().clamp(min=1)
        return logits + size * largest * torch.randn(logits.shape, generator=moves)

    return replace(output, logits=other(output.logits), null=None if output.null is None else other(output.null))


def refused_before(pipe: Any, call: dict[str, Any]) -> None:
    """A call that is refused is refused again, before the model runs."""
    inside = set(getattr(pipe, pipe.target_module).modules())
    ran = list[str]()
    hook = torch.nn.modules.module.register_module_forward_pre_hook(
        lambda module, given: ran.append(type(module).__name__) if module in inside else None
    )
    try:
        pipe(**call)
    except (ValueError, TypeError):
        pass
    finally:
        hook.remove()
    if ran:
        raise Broken(f"it refused the call after {ran[0]} had run")


def held(pipe: Any) -> dict[str, Any]:
    """What a pipeline and its models hold, but for the method in use."""
    found: dict[str, Any] = {"config": dict(pipe.config), "pipe": sorted(set(vars(pipe)) - OWN)}
    for name, part in pipe.components.items():
        if isinstance(part, torch.nn.Module):
            for path, module in part.named_modules():
                found[f"{name}.{path}"] = sorted(vars(module)), module.training
            found[f"{name} weights"] = {key: weights._version for key, weights in part.state_dict().items()}
    return found


CLOCKS = (Goodput, Payoff)
OWN = {"_decoder", "_bound_device", "_bound_parts", "_use_arguments", "_guidance_scale", "_interrupt", "_size"}
OWN |= {"_progress_bar_config", "unfinished"}


def changed(before: dict[str, Any], after: dict[str, Any]) -> str:
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    return "; ".join(f"{name}: {before.get(name)} → {after.get(name)}" for name in names[:2])[:400]


# Checks: each gets the case, its pipeline, which has drawn `ours` and then plain's; it returns what happened, or None.


def alone(case: Case, pipe: Any, ours: Drawing) -> str | None:
    """The last row of a batch is drawn alone, with its seed; not under a rule whose units depend on drafts' lengths.

    These end with the row that has most room left.
    """
    if ours.units.dtype == torch.int64 and ours.report.exactness != "invariant":
        return None
    call = arguments(case, pipe)
    seeds = call.get("seed") if isinstance(call.get("seed"), list) else None
    sources = call.get("generator") if isinstance(call.get("generator"), list) else None
    rows = len(ours.units)
    row = rows - 1 if seeds or sources else 0
    if not seeds and sources is None and "generator" in call:
        return None
    if seeds:
        call["seed"] = [seeds[row]]
    if sources:
        call["generator"] = [sources[row]]
    if "first_frames" in call:
        call["first_frames"], call["past_actions"] = call["first_frames"][row : row + 1], [call["past_actions"][row]]
        whole = call["actions"]
        call["actions"] = (lambda number, frames: whole(number, frames)[row]) if callable(whole) else [whole[row]]
    else:
        each = row // call.pop("num_images_per_prompt", 1)
        for name in ("prompt", "class_labels", "negative_prompt"):
            if isinstance(call.get(name), list) and len(call[name]) > 1:
                call[name] = [call[name][each]]
        for name in ("prompt_embeds", "prompt_attention_mask"):
            if isinstance(call.get(name), Tensor) and len(call[name]) > 1:
                call[name] = call[name][each : each + 1]
    mine = again(case, pipe, call)
    whole_row = replace(ours, units=ours.units[row : row + 1], images=None)
    return same(whole_row, mine, row, coded="cache" in KINDS[case["model"]].unused)


def same(whole: Drawing, mine: Drawing, row: int, coded: bool) -> str:
    """A row of a batch and the row alone, up to rounding, which pictures of codes do not have."""
    if whole.units.is_floating_point():
        return compared(whole, replace(mine, images=None), exact=coded)
    if torch.equal(whole.units, mine.units):
        return "equal"
    state = copy.copy(whole.state)
    if state is not None:
        state.live = replace(state.live, history=state.history[row : row + 1])
    if not explained(mine, replace(whole, state=state), 0):
        raise Broken(f"row {row} of the batch differs from the row alone, which no rounding explains")
    return "rounding"


def twice(case: Case, pipe: Any, ours: Drawing) -> str | None:
    """The same call once more, behind calls of another method and of other sizes, is equal to the bit."""
    kind = KINDS[case["model"]]
    if kind.units != "frames":
        usual = arguments({"model": case["model"]}, pipe)
        drawing(pipe, usual | ({"height": kind.sizes[0][0], "width": kind.sizes[0][1]} if kind.sizes else {}))
    return to_the_bit(ours, again(case, pipe), "the second call")


def to_the_bit(ours: Drawing, other: Drawing, what: str) -> str:
    """Raises `Broken` where they differ, unless a clock chose lengths on which units depend."""
    if ours.start is not None and ours.report.exactness != "invariant" and isinstance(ours.start[0].policy, CLOCKS):
        return "timed"
    for mine, right in ((ours.units, other.units), (ours.images, other.images)):
        if mine is not None and not torch.equal(mine, right):
            raise Broken(f"{what} gives another output")
    return "equal"


def null(case: Case, pipe: Any, ours: Drawing) -> str | None:
    """An empty negative prompt is the null prompt."""
    call = arguments(case, pipe)
    if call.get("negative_prompt") not in (None, "") or "prompt" not in call or not guided(pipe, call):
        return None
    if "negative_prompt" in call:
        call.pop("negative_prompt")
    else:
        call["negative_prompt"] = ""
    return to_the_bit(ours, again(case, pipe, call), "an empty negative prompt in place of None")


def guided(pipe: Any, call: dict[str, Any]) -> bool:
    scale = call.get("guidance_scale")
    return bool((pipe.sampling.guidance_scale if scale is None else scale) > 1)


def repeated(case: Case, pipe: Any, ours: Drawing) -> str | None:
    """Several pictures of a prompt are those of the prompt named several times."""
    call = arguments(case, pipe)
    times = call.get("num_images_per_prompt")
    if times is None or isinstance(call.get("generator"), torch.Generator):
        return None
    del call["num_images_per_prompt"]
    for name in ("prompt", "class_labels"):
        if name in call:
            given = call[name] if isinstance(call[name], list) else [call[name]]
            call[name] = [each for each in given for _ in range(times)]
    if isinstance(call.get("negative_prompt"), list) and len(call["negative_prompt"]) > 1:
        call["negative_prompt"] = [each for each in call["negative_prompt"] for _ in range(times)]
    for name in ("prompt_embeds", "prompt_attention_mask"):
        if name in call:
            call[name] = call[name].repeat_interleave(times, 0)
    return to_the_bit(ours, again(case, pipe, call), "naming a prompt several times")


def saved(case: Case, pipe: Any, ours: Drawing) -> str | None:
    """A saved and loaded pipeline draws the same, to the bit."""
    if case.get("dtype") or KINDS[case["model"]].shipped:
        return None  # what is shipped was loaded from such a folder
    with tempfile.TemporaryDirectory() as folder:
        pipe.use("plain").save_pretrained(folder)
        other = mmspec.Pipeline.from_pretrained(folder)
        other.set_progress_bar_config(disable=True)
        return to_the_bit(ours, again(case, other), "the saved and loaded pipeline")


def copies(case: Case, pipe: Any, ours: Drawing) -> str | None:
    """A copy, and what comes back from pickle, draw the same."""
    other = pickle.loads(pickle.dumps(pipe.use("plain")))
    return to_the_bit(ours, again(case, other), "the unpickled pipeline")


def swapped(case: Case, pipe: Any, ours: Drawing) -> str | None:
    """With another model in its place, it draws what a new pipeline of that model draws."""
    name = pipe.target_module
    other = copy.deepcopy(getattr(pipe, name))
    with torch.no_grad():
        for weights in other.parameters():
            weights += (0.1 * torch.randn(weights.shape, generator=generator(9))).to(weights.dtype)
    old = getattr(pipe, name)
    pipe.use(case["method"], **how(case, pipe))
    drawing(pipe, arguments(case, pipe))
    given = how(case, pipe)
    try:
        setattr(pipe, name, other)
        mine = drawing(pipe, arguments(case, pipe))
    finally:
        setattr(pipe, name, old)
    new = fresh(pipe)
    setattr(new, name, other)
    new.use(case["method"], **given)
    return to_the_bit(drawing(new, arguments(case, new)), mine, "a replaced model")


def stopped(case: Case, pipe: Any, ours: Drawing) -> str | None:
    """A call behind one that was stopped half-way is equal to the bit."""
    call = arguments(case, pipe)
    if case["model"] == "mar":  # which calls nothing back
        return None

    def stop(pipe: Any, step: int, timestep: int, tensors: dict[str, Any]) -> None:
        if step:
            raise KeyboardInterrupt

    if "first_frames" in call:
        answers = call["actions"] if callable(call["actions"]) else lambda number, frames: 0
        call |= {"num_frames": 2, "actions": lambda number, frames: raised() if number else answers(number, frames)}
    else:
        call |= {"callback_on_step_end": stop}
    pipe.use(case["method"], **how(case, pipe))
    with suppress(KeyboardInterrupt, RuntimeError):
        pipe(**call)
    return to_the_bit(ours, drawing(pipe, arguments(case, pipe)), "a call behind one that was stopped")


def raised() -> Any:
    raise RuntimeError("the player is gone")


def whole(case: Case, pipe: Any, ours: Drawing) -> str | None:
    """Greedy codes are the likeliest of whole passes of the unmodified model, one a row."""
    if ours.start is None or "steer_every" in arguments(case, pipe):
        return None
    _, inputs, limit, options = ours.start
    warp, worst = options["warp"], 0.0
    if warp.sample:
        return None
    plain = drawing(pipe.use("plain"), arguments(case, pipe))
    for row in range(len(plain.units)):
        begin = plain.state.prompt_length
        units = plain.state.history[row, begin : begin + limit]
        halves = passes(case["model"], pipe, inputs, row, units)
        logits = halves[0] if warp.guidance is None else halves[1] + warp.guidance * (halves[0] - halves[1])
        free = torch.ones(limit, dtype=torch.bool) if warp.forced is None else warp.forced < 0
        allowed = allowed_by(warp, logits)
        logits = logits.masked_fill(~allowed, -torch.inf)
        lost = logits.max(-1).values - logits.gather(-1, units[:, None])[:, 0]
        worst = max(worst, float(lost[free].max()) / max(1.0, float(logits[:, allowed].abs().max())))
    if not worst < NEAR_TIE:
        raise Broken(f"a code of plain lost by {worst:.3g} of the largest score in a whole pass")
    return "equal"


def allowed_by(warp: Any, logits: Tensor) -> Tensor:
    """`[vocab]` bool: what the constraint of a call leaves."""
    allowed = torch.ones(logits.shape[-1], dtype=torch.bool)
    for processor in warp.processors:
        if hasattr(processor, "allowed"):
            allowed = torch.zeros_like(allowed).index_fill(0, processor.allowed, True)
    return allowed


@torch.no_grad()
def passes(kind: str, pipe: Any, inputs: Any, row: int, units: Tensor) -> list[Tensor]:
    """Scores `[unit, vocab]` of both halves (one, without guidance), from whole passes."""
    if kind in ("classes", "captions", "emoji"):
        model = pipe.transformer
        null = model.cls_embedding.null(1) if inputs.null is None else inputs.null[row : row + 1]
        masks = [inputs.mask, inputs.mask if inputs.null_mask is None else inputs.null_mask]
        given = [inputs.given[row : row + 1], null]
        halves = list(zip(given, [None if mask is None else mask[row : row + 1] for mask in masks], strict=True))
        return [model(each, units[None], mask)[0] for each, mask in halves[: 1 + inputs.guided]]
    if kind == "janus":
        halves = [(inputs.input_ids, inputs.attention_mask)]
        if inputs.guided:
            halves.append((inputs.negative_ids, inputs.negative_mask))
    else:
        given = [inputs, *([inputs[NULL_INPUTS]] if NULL_INPUTS in inputs else [])]
        halves = [(each["input_ids"], each["attention_mask"]) for each in given]
    found = []
    for ids, mask in halves:
        prompt = ids[row][mask[row].bool()] if mask is not None else ids[row]
        if kind == "janus":
            inner = pipe.model.model
            embeds = inner.get_input_embeddings()(prompt)
            if len(units) > 1:
                codes = pipe.model.prepare_embeddings_for_image_generation(units[None, :-1])[0]
                embeds = torch.cat([embeds, codes])
            hidden = inner.language_model(inputs_embeds=embeds[None], use_cache=False).last_hidden_state
            found.append(inner.generation_head(hidden)[0, len(prompt) - 1 :].float())
        else:
            scored = pipe.model(input_ids=torch.cat([prompt, units[:-1]])[None]).logits[0, len(prompt) - 1 :]
            found.append(scored.float())
    return found


def law(case: Case, pipe: Any, ours: Drawing) -> str | None:
    """Under an exact method units have plain's distribution: means, squares, and products of neighbours."""
    call = arguments(case, pipe)
    exact = ours.report.exactness in ("invariant", "lossless") and not ours.report.wrt
    wide = case.get("option.drafter.siblings", 0) > 8  # which takes gigabytes for so many rows
    if not exact or wide or len(ours.units[0].flatten()) > 80 or "steer_every" in call:
        return None
    for name in ("prompt", "class_labels", "negative_prompt"):
        if isinstance(call.get(name), list):
            call[name] = call[name][0]
    for name in ("prompt_embeds", "prompt_attention_mask"):
        if name in call:
            call[name] = call[name][:1]
    call.pop("generator", None)
    call |= {"num_images_per_prompt": SEVERAL, "output_type": "latent"}
    mine = again(case, pipe, {**call, "seed": 17}).units
    right = drawing(pipe.use("plain"), {**call, "seed": 5_000}).units
    moments = [features(each, torch.cat([mine, right]).unique()) for each in (mine, right)]
    means, errors = [each.mean(0) for each in moments], [each.var(0) / SEVERAL for each in moments]
    sure = (errors[0] + errors[1]) > 1e-12
    apart = ((means[0] - means[1]).abs() / (errors[0] + errors[1] + 1e-4 / SEVERAL).sqrt())[sure]
    if len(apart) and float(apart.max()) > APART:
        raise Broken(f"its distribution is another: a mean is {float(apart.max()):.1f} standard errors off")
    return "law"


def features(units: Tensor, codes: Tensor) -> Tensor:
    """`[row, feature]`: numbers, squares, and products with the cell before; codes are one-hot among `codes`."""
    cells = units.flatten(1, 2)
    if not units.is_floating_point():
        cells = (cells[..., None] == codes).double()
    cells = cells.double().clamp(-20, 20)
    products = (cells[:, 1:, :, None] * cells[:, :-1, None]).flatten(1) if cells.shape[-1] <= 8 else cells.flatten(1)
    return torch.cat([cells.flatten(1), cells.square().flatten(1), products], 1)


@dataclass(frozen=True)
class Check:
    """One thing that is asked of a case, and of which units."""

    run: Callable[[Case, Any, Drawing], str | None]
    units: frozenset[str] = frozenset({"codes", "tokens", "frames"})


PICTURES = frozenset({"codes", "tokens"})
ALSO: dict[str, Check] = {
    "alone": Check(alone),
    "twice": Check(twice),
    "null": Check(null, PICTURES),
    "repeated": Check(repeated, PICTURES),
    "saved": Check(saved),
    "copied": Check(copies),
    "swapped": Check(swapped),
    "stopped": Check(stopped),
    "whole": Check(whole, frozenset({"codes"})),
    "law": Check(law, PICTURES),
}
