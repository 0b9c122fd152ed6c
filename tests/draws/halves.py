"""Half precision in one shape: to the bit the text, and the scores, of plain decoding of the same width.

The decoders and settings are those of `targets`. Where a report names no width, nothing is promised.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.utils import logging

import mmspec
from mmspec.core.compile import launch
from tests.draws.calls import METHODS, draw_call
from tests.draws.claim import Broken, Case, Claim, Dice
from tests.draws.decoders import NEW, decoder_parts, decoder_space, draw_decoder, draw_padding, made, prompt
from tests.draws.targets import call_of, in_mid_text

DTYPES = ("bfloat16", "float16")
WAYS = ("eager", "traced", "compiled")
"""Rounds as they are; traced by torch, and compiled by it."""


@contextlib.contextmanager
def rounds(way: str) -> Iterator[dict[str, Any]]:
    """The arguments of `enable` for a way; traced rounds take seconds, compiled ones many."""
    before = launch.BACKEND
    launch.BACKEND = "eager" if way == "traced" else before
    try:
        yield {} if way == "eager" else {"compile": True}
    finally:
        launch.BACKEND = before
        if way != "eager":
            torch._dynamo.reset()


def half(case: Case) -> PreTrainedModel:
    """The model of a case in half precision."""
    return made(case).to(getattr(torch, case["dtype"]))


Written = tuple[Tensor, list[Tensor], Any]
"""Ids, logits of every step, and the report."""


def decoded(model: PreTrainedModel, case: Case, **how: Any) -> Written:
    """A call under `mmspec.enable`."""
    with mmspec.enable(model, **how) as handle:
        torch.manual_seed(0)
        call = {**call_of(case), "return_dict_in_generate": True, "output_logits": True}
        out = model.generate(**prompt(case), **call)
        return out.sequences, list(out.logits), handle.report


def both(case: Case) -> tuple[Written, Written]:
    """Plain decoding of a case's width, and its method in passes of the same width."""
    model, width = half(case), case["width"]
    with rounds(case.get("way", "eager")) as more:
        plain = decoded(model, case, method="plain", shape=width, **more)
        text = plain[0][:, case["length"] :]
        how = METHODS[case["method"]](model, text)
        return plain, decoded(model, case, **how, **more, k=case.get("k", 3), shape=width)


class Halves(Claim):
    """The claim."""

    name = "halves"
    share = 0.6
    fixed = 16
    needed = frozenset({"decoder", "length", "method", "dtype", "width"})

    def draw(self, dice: Dice) -> Case:
        case = draw_decoder(dice)
        pads = draw_padding(dice, case["length"])
        case |= {} if pads == [0] else {"pads": pads}
        case |= draw_call(dice, case["length"], NEW)
        case["dtype"] = dice.choice(DTYPES)
        if case["method"] == "plain":
            case["method"] = "known-tree"
        case["k"] = min(case.get("k", 3), 7)
        case["width"] = 2 * case["k"] + 1 + dice.choice([0, 0, 1, 5])
        if dice.random() < 0.04:
            case["way"] = dice.choice([*WAYS[1:], "traced", "traced"])
        return case

    def run(self, case: Case) -> str:
        logging.set_verbosity_error()
        try:
            half(case).generate(**prompt(case), **call_of(case))
        except Exception:
            return "stock fails"
        try:
            plain, ours = both(case)
        except ValueError as error:
            if in_mid_text(error):
                raise Broken(f"refused in mid-text: {error}") from error
            return "refused"
        if ours[2].width is None or plain[2].width is None:
            return "no promise"
        if ours[2].compiled != plain[2].compiled:  # a round that cannot be compiled says so
            return "compiled in part"
        for number, (one, other) in enumerate(zip(plain[1], ours[1], strict=False)):
            if not torch.equal(one, other):
                rows = [row for row in range(len(one)) if not torch.equal(one[row], other[row])]
                off = float((one - other).nan_to_num().abs().max())
                raise Broken(f"logits of step {number} differ by {off:.2g} in rows {rows} ({ours[2]})")
        if not torch.equal(plain[0], ours[0]):
            raise Broken("the logits are equal, and the ids are not")
        return "equal"

    def space(self) -> Iterator[str]:
        yield from decoder_space()
        yield from (f"method:{name}" for name in METHODS)
        yield from (f"dtype:{name}" for name in DTYPES)
        yield from (f"way:{name}" for name in WAYS)

    def parts(self, case: Case) -> Iterator[str]:
        yield from decoder_parts(case)
        yield f"method:{case['method']}"
        yield f"dtype:{case['dtype']}"
        yield f"way:{case.get('way', 'eager')}"

    def program(self, case: Case) -> str:
        return f"""import torch
from tests.draws.halves import both

case = {case!r}
plain, ours = both(case)  # ids, logits of every step, and the report
print(ours[2])
assert ours[2].width == plain[2].width == case["width"]
assert torch.equal(torch.stack(plain[1]), torch.stack(ours[1]))
assert torch.equal(plain[0], ours[0])
"""


CLAIM = Halves()
