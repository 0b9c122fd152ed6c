"""Any decoder at any setting: the output of unmodified `generate`, or a refusal before anything runs.

And the model is left as it was: its parts, attributes and buffers, and what its own `generate` says.
"""

import contextlib
import io
import re
import traceback
from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.utils import logging

import mmspec
from mmspec.compare.equality import Stock, assert_same, stock
from tests.draws.calls import LAWS, METHODS, OTHERS, draw_call
from tests.draws.claim import Broken, Case, Claim, Dice
from tests.draws.decoders import (
    NEW,
    decoder_parts,
    decoder_space,
    draw_decoder,
    draw_padding,
    made,
    prompt,
    settings_of,
)

SHARE = 1e-3
"""The model's own noise is rounding up to this share of its largest logit."""
LEAST, TIMES = 1e-5, 16
"""Scores may differ by so small a share of the largest one, and by so many times the model's own noise."""


def call_of(case: Case) -> dict[str, Any]:
    """The arguments of `generate`, beside the prompt."""
    length = {} if "model.max_length" in case else {"max_new_tokens": case.get("new", NEW)}
    given = settings_of(case, "call")
    if "sequence_bias" in given:
        given["sequence_bias"] = {tuple(key): value for key, value in given["sequence_bias"]}
    for name in ("exponential_decay_length_penalty",):
        given |= {name: tuple(given[name])} if name in given else {}
    return {"do_sample": False, **length, **given}


def state_of(model: PreTrainedModel) -> dict[str, Any]:
    """Parts, attributes, buffers and parameters of a model: what a user may find changed."""
    found: dict[str, Any] = {}
    for name, part in model.named_modules():
        found[name] = type(part)
        for key, value in {**vars(part), **part._buffers, **part._parameters}.items():
            found[f"{name}.{key}"] = value.clone() if isinstance(value, Tensor) else _plain(value)
        found[f"{name}:"] = [id(each) for each in part._modules.values()]
    return {**found, "config": model.config.to_json_string(), "generate": repr(model.generation_config)}


def _plain(value: Any) -> Any:
    return value if isinstance(value, bool | int | float | str | type(None)) else f"{type(value).__name__} {id(value)}"


def changes(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """The names of what is not the same."""

    def same(one: Any, other: Any) -> bool:
        if isinstance(one, Tensor) and isinstance(other, Tensor):
            # A table of positions that a class makes longer when it is asked for more is the same table.
            if one.dim() and one.shape[1:] == other.shape[1:]:
                one, other = one[: len(other)], other[: len(one)]
            return one.dtype == other.dtype and torch.equal(one, other)
        return type(one) is type(other) and bool(one == other)

    return [name for name in {**before, **after} if not same(before.get(name), after.get(name))]


def in_mid_text(error: BaseException) -> bool:
    """Whether an error came out of a round, when something had been written."""
    frames = traceback.extract_tb(error.__traceback__)
    return any(frame.name in ("advance", "own_rounds") for frame in frames)


def outcome_of(ids: Tensor, state: Tensor, run: Stock, model: PreTrainedModel, case: Case) -> str:
    """`equal` or `rounding`.

    Raises:
        Broken: Another text, whose margin the model's own rounding does not explain.
    """
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            return "rounding" if assert_same(ids, run, state) else "equal"
        except AssertionError as error:
            found = re.search(r"row (\d+), new token \d+: .* margin ([\d.e+-]+)$", str(error))
            if found is None or not float(found[2]) < 4 * own_noise(model, run, int(found[1]), case):
                raise Broken(str(error)) from None
    return "rounding"


SCORED: dict[str, Any] = dict(do_sample=False, return_dict_in_generate=True, output_logits=True, eos_token_id=None)


class Forced:
    """Lets nothing be written but a row `[1, unit]`."""

    def __init__(self, row: Tensor) -> None:
        self.row = row[0].tolist()

    def __call__(self, number: int, ids: Tensor) -> list[int]:
        return [self.row[len(ids)]]


def own_noise(model: PreTrainedModel, run: Stock, row: int, case: Case) -> float:
    """How far stock's steps are from its own pass over the whole row, in the scores of the call; 0: not rounding."""
    noise, largest = apart(model, run, row, case)
    return float(noise.max()) if float(noise.max()) < SHARE * largest else 0.0


@torch.no_grad()
def apart(model: PreTrainedModel, run: Stock, row: int, case: Case) -> tuple[Tensor, float]:
    """How far stock's steps `[step]` are from its own pass over the whole row, and the largest score."""
    pads = case.get("pads", [0])
    units = run.ids[row][None, pads[row * len(pads) // len(run.ids)] :]
    known = units.shape[1] - len(run.scores)
    whole = model(input_ids=units, use_cache=False).logits[0]
    again = model.generate(
        units[:, :known], **SCORED, max_new_tokens=len(run.scores), prefix_allowed_tokens_fn=Forced(units)
    )
    warmth = case.get("call.temperature", 1.0)
    return (torch.cat(again.logits) - whole[known - 1 : -1]).abs().amax(1) / warmth, float(whole.abs().max()) / warmth


def refusal(error: ValueError, model: PreTrainedModel, run: Stock, case: Case) -> str:
    """`refused`; with the reason if it may be one too many: stock agrees with itself, and the bare decoder is taken."""
    if "own" in case or len(run.ids) > 1 or any(case.get("pads", [0])) or not taken(case["decoder"]):
        return "refused"
    noise, largest = apart(model, run, 0, case)
    reason = re.sub(r"\S*\d\S*|\S*For\S+", "…", str(error).partition(", where")[0].partition(";")[0])
    alike = float(noise.max()) < SHARE * largest
    return f"refused, though stock agrees with itself: {reason[-110:]}" if alike else "refused"


@cache
def taken(decoder: str) -> bool:
    """Whether a decoder without settings is taken."""
    case = {"decoder": decoder, "length": 24, "method": "plain"}
    model = made(case)
    try:
        written(model, prompt(case), stock(model, prompt(case), 0, **call_of(case)), case)
    except Exception:  # or stock itself fails at that length, as xLSTM does
        return False
    return True


def compare_scores(scores: tuple[Tensor, ...], ids: Tensor, run: Stock, model: PreTrainedModel, case: Case) -> None:
    """Compare the scores of every step up to where texts part: a fault need not change a token.

    Raises:
        Broken: They differ in some row by more than the model's own rounding.
    """
    prompt_length = run.ids.shape[1] - len(run.scores)
    for row in range(len(run.ids)):
        same = (ids[row, prompt_length:] == run.ids[row, prompt_length:]).long().cumprod(0).sum() if scores else 0
        ends = [step for step, unit in enumerate(run.ids[row, prompt_length:].tolist()) if unit in run.ends]
        steps = range(min([int(same) + 1, len(scores), len(run.scores), *(end + 1 for end in ends[:1])]))
        pairs = [(scores[step][row], run.scores[step][row]) for step in steps]
        seen = [(ours - right)[ours.isfinite() & right.isfinite()].abs() for ours, right in pairs]
        off = [float(each.max()) if each.numel() else 0.0 for each in seen]
        largest = max((float(right[right.isfinite()].abs().max()) for _, right in pairs), default=0.0)
        # Rounding may make a router of experts choose otherwise, in some steps.
        routed = has_experts(model)
        found = min(off, default=0.0) if routed else max(off, default=0.0)
        if found > LEAST * largest:
            noise, most = apart(model, run, row, case)
            own = float(noise.median() if routed else noise.max())
            if found > (TIMES * own if own < SHARE * most else SHARE * largest):
                raise Broken(f"row {row}: scores differ by {found:.2g} of {largest:.2g}, and stock's own by {own:.2g}")


def has_experts(model: PreTrainedModel) -> bool:
    """Whether a part of a model routes units to experts."""
    return any("expert" in name or "router" in name for name, _ in model.named_modules())


def second(case: Case) -> Tensor:
    """What stock says in the second call of a fresh model, which may remember the first (dynamic rope)."""
    model = made(case)
    stock(model, prompt(case), 0, **call_of(case))
    return stock(model, prompt(case), 0, **call_of(case)).ids


class Targets(Claim):
    """The claim."""

    name = "targets"
    fixed = 40
    needed = frozenset({"decoder", "length", "method"})

    def draw(self, dice: Dice) -> Case:
        case = draw_decoder(dice)
        pads = draw_padding(dice, case["length"])
        if pads != [0]:
            case["pads"] = pads
        return {**case, **draw_call(dice, case["length"], NEW)}

    def run(self, case: Case) -> str:
        logging.set_verbosity_error()
        inputs, call = prompt(case), call_of(case)
        try:
            model = made(case)
        except Exception:
            return "not buildable"
        fresh = state_of(model)
        try:
            run = stock(model, inputs, 0, **call)
        except Exception:
            return "stock fails"
        before, refused = state_of(model), None
        own = changes(fresh, before)  # what every call of stock changes, and a call of ours may
        if own:  # this model remembers a call
            model = made(case)
            before = state_of(model)
        try:
            ids, state, scores = written(model, inputs, run, case)
        except ValueError as error:
            if in_mid_text(error):
                raise Broken(f"refused in mid-text: {error}") from error
            outcome, refused = "refused", error
        else:
            outcome = outcome_of(ids, state, run, model, case)
            compare_scores(scores, ids, run, model, case)
        changed = [name for name in changes(before, state_of(model)) if name not in own]
        if changed:
            raise Broken(f"the model was left with other {', '.join(changed[:4])} ({outcome})")
        after = stock(model, inputs, 0, **call).ids
        if not torch.equal(after, run.ids) and not torch.equal(after, second(case)):
            raise Broken(f"afterwards the model's own generate says something else ({outcome})")
        return outcome if refused is None else refusal(refused, model, run, case)

    def space(self) -> Iterator[str]:
        yield from decoder_space()
        yield from (f"method:{name}" for name in METHODS)
        yield from (f"call:{name}" for name in [*LAWS, *OTHERS])
        yield from (f"padding:{name}" for name in ("none", "row", "batch", "ragged"))

    def parts(self, case: Case) -> Iterator[str]:
        yield from decoder_parts(case)
        yield f"method:{case['method']}"
        asked = {**settings_of(case, "call"), **settings_of(case, "model")}
        yield from (f"call:{name}" for name in asked if name in {**LAWS, **OTHERS})
        pads = case.get("pads", [0])
        yield "padding:" + ("none" if pads == [0] else "row" if len(pads) == 1 else "ragged" if any(pads) else "batch")

    def program(self, case: Case) -> str:
        return f"""import torch
from mmspec.compare.equality import assert_same, stock
from tests.draws.decoders import made, prompt
from tests.draws.targets import call_of, compare_scores, written

case = {case!r}
model, inputs, call = made(case), prompt(case), call_of(case)
run = stock(model, inputs, 0, **call)
ids, state, scores = written(model, inputs, run, case)
compare_scores(scores, ids, run, model, case)
assert_same(ids, run, state)
assert torch.equal(stock(model, inputs, 0, **call).ids, run.ids)
"""


Written = tuple[Tensor, Tensor, tuple[Tensor, ...]]
"""Ids, the state of torch's generator, and the scores of every step, if the case asks for them."""


def written(model: PreTrainedModel, inputs: dict[str, Tensor], run: Stock, case: Case) -> Written:
    """The same call under the case's method."""
    more = {"k": case["k"]} if "k" in case else {}
    how = METHODS[case["method"]](model, run.ids[:, inputs["input_ids"].shape[1] :])
    with mmspec.enable(model, **how, **more):
        torch.manual_seed(0)
        if "dict" not in case:
            return model.generate(**inputs, **call_of(case)), torch.get_rng_state(), ()
        out = model.generate(**inputs, **call_of(case), return_dict_in_generate=True, output_scores=True)
        return out.sequences, torch.get_rng_state(), out.scores


CLAIM = Targets()
