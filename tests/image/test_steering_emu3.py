"""Emu3 led away from another prompt while it writes, as if that had been the negative prompt from the beginning."""

from typing import Any

import pytest
import torch
from torch import Tensor

from mmspec.core.decoder import Decoder
from mmspec.core.distributions import Categorical
from mmspec.core.philox import PhiloxSource
from mmspec.core.rules import Match
from mmspec.core.warp import Warp
from mmspec_image.drafters.jacobi import ImageJacobi, JacobiOptions
from mmspec_image.targets.written import Emu3Target
from mmspec_text.drafters.prompt_lookup import PromptLookup
from tests.support.examples.written import emu3_prompt, guided, tiny_emu3

LIMIT, SCALE, SLOW = 18, 2.0, pytest.mark.slow
DRAFTERS = {"plain": lambda: None, "gs-sjd": lambda: ImageJacobi(JacobiOptions("random")), "lookup": PromptLookup}
AWAY = {5: [4, 9, 2], 10: [*range(20, 90)], 15: [7]}
"""After so many units, words to lead away from: more than at first, more than there were slots for, fewer."""


def null_of(row: int, words: list[int]) -> list[int]:
    return [3 + row, *words, 155]


@torch.no_grad()
def written_out(rows: int, sample: bool) -> Tensor:
    """Plain drawing, in which both halves are read from their beginning for every unit: `[row, LIMIT]`."""
    model, given = tiny_emu3(), guided(range(rows))
    halves = [[ids[ids != 0] for ids in part["input_ids"]] for part in (given, given["null_inputs"])]
    units, source = torch.zeros(rows, 0).long(), PhiloxSource.seeded([*range(rows)], rows)
    for t in range(LIMIT):
        if t in AWAY:
            halves[1] = [torch.tensor(null_of(row, AWAY[t])) for row in range(rows)]
        there, null = (
            torch.stack(
                [model(input_ids=torch.cat([p, u])[None]).logits[0, -1] for p, u in zip(half, units, strict=True)]
            )
            for half in halves
        )
        scores = (null + SCALE * (there - null))[:, None]
        source.begin([t] * rows)
        noise = source.by_position(torch.full((rows,), t), [t] * rows, 0)
        unit = Categorical.of_logits(scores).draw(noise) if sample else scores.argmax(-1)
        units = torch.cat([units, unit], 1)
    return units


def steered(rows: int, drafter: Any, sample: bool) -> Tensor:
    target = Emu3Target(tiny_emu3())
    decoder = Decoder(target, drafter, Match(), k=0 if drafter is None else 5)
    warp = Warp.sampling(guidance=SCALE) if sample else Warp(sample=False, guidance=SCALE)
    how = {"seed": [*range(rows)], "warp": warp}
    for state in decoder.rounds(guided(range(rows)), LIMIT, pauses=[*AWAY], **how):
        if state.waits:
            at = state.host.emitted[0]
            known = state.history[:, state.prompt_length :][:, : at - 1]
            null = torch.tensor([null_of(row, AWAY[at]) for row in range(rows)])
            target.renew_null(state.cache, null, None, known)
            state.player.renew()
    return torch.stack(state.output())


@pytest.mark.compiled
@pytest.mark.parametrize("drafter", ["gs-sjd", *(pytest.param(each, marks=SLOW) for each in ("plain", "lookup"))])
@pytest.mark.parametrize(("rows", "sample"), [(3, True), pytest.param(1, False, marks=SLOW)])
def test_what_is_written_is_what_is_written_out(drafter: str, rows: int, sample: bool) -> None:
    made = steered(rows, DRAFTERS[drafter](), sample)
    assert torch.equal(made, written_out(rows, sample))
    unsteered = Decoder(Emu3Target(tiny_emu3()), None, Match(), k=0)
    warp = Warp.sampling(guidance=SCALE) if sample else Warp(sample=False, guidance=SCALE)
    plain = unsteered.generate(guided(range(rows)), LIMIT, seed=[*range(rows)], warp=warp).units
    assert torch.equal(made[:, :5], torch.stack(plain)[:, :5]) and not torch.equal(made, torch.stack(plain))


def test_what_cannot_be_led_away_from_is_refused() -> None:
    target, null = Emu3Target(tiny_emu3()), torch.tensor([[4, 155]])
    cache = target.start(guided([0]), LIMIT, 1).cache
    for given, message in ((null.repeat(2, 1), "2 negative prompts for 1 rows"), (null + 99, "vocabulary of 200")):
        with pytest.raises(ValueError, match=message):
            target.renew_null(cache, given, None, null[:, :0])
    with pytest.raises(ValueError, match="began without guidance"):
        target.renew_null(target.start(emu3_prompt([0]), LIMIT, 1).cache, null, None, null[:, :0])
