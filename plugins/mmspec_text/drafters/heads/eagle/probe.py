"""A trial of a head on the user's prompt: how often its first guess is the target's.

One pass of the target over a piece of the prompt, then one of the head for every meaning of its layer ids, with true
features and true units. A head with wrong layers, of another target, or trained on another template is as lossless as
any, and only slow: these numbers are where it shows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmspec.core.tree import TreeIndex
from mmspec.hosts.features import Reading
from mmspec.hosts.masks import PassGeometry
from mmspec.hosts.target import TransformersTarget
from mmspec.registry.warn import warn
from mmspec_text.drafters.heads.cache import HeadCache
from mmspec_text.drafters.heads.eagle.features import Features
from mmspec_text.drafters.heads.eagle.layouts import Convention
from mmspec_text.drafters.heads.head import Head

UNITS, FEWEST = 64, 16
"""Units of a trial, and the fewest from which its numbers say anything."""
LOW = 0.1
"""A head that guesses less of a prompt is reported; trained ones guess a third to two thirds."""


@dataclass(frozen=True)
class Trial:
    """The result.

    Attributes:
        units: Units that were guessed.
        right: Share of guesses that are the target's likeliest unit, by the meaning of the layer ids.
        chosen: The meaning that guessed best; of equal ones the one that the layout suggests.
    """

    units: int
    right: dict[Convention, float]
    chosen: Convention


@torch.inference_mode()
def tried(network: Head, target: TransformersTarget, features: Features, ids: Tensor) -> Trial:
    """Try a head on `ids [unit]`, without padding."""
    with Reading(target.anatomy, features.boundaries) as reading:
        arguments: dict[str, Any] = {"input_ids": ids[None]}
        scores = target.model(**arguments, use_cache=False).logits[0]
    assert reading.states is not None
    theirs = scores[1:-1, : network.vocab].argmax(-1)  # the unit behind x_{t+1}, which row t guesses
    right = {}
    for name, boundaries in features.choices.items():
        width = reading.states.shape[-1] // len(features.boundaries)
        states = reading.states[:, :-2, features.columns(name, width)]
        assert states.shape[-1] == width * len(boundaries)
        guesses = teacher_forced(network, states, ids[None, 1:-1])[0].argmax(-1)
        right[name] = float((guesses == theirs.to(guesses.device)).float().mean())
    return Trial(len(theirs), right, max(right, key=lambda name: right[name]))


def teacher_forced(network: Head, features: Tensor, units: Tensor) -> Tensor:
    """Logits `[batch, row, vocab]` of rows with true features `[batch, row, width]` and units `[batch, row]`."""
    rows, columns = units.shape
    slots = HeadCache(network, rows, columns, units.device).slots
    slots.open(0, columns)
    chain = TreeIndex.chain(columns, units.device)
    geometry = PassGeometry(slots.length, chain.ancestor, chain.depth, slots.visible)
    return network.logits(network.passed(units, network.taken_in(features), slots, geometry))


def report(
    trial: Trial,
    name: str,
    guess: Convention,
    layer_ids: Sequence[int],
    field: str = "eagle_aux_hidden_state_layer_ids",
) -> None:
    """Warn if layer ids (`field` of a config) mean something else than expected, or if the head guesses badly."""
    best = trial.right[trial.chosen]
    if trial.chosen != guess:
        warn(
            f"the layer ids {', '.join(map(str, layer_ids))} of the head {name!r} name {_said(trial.chosen)}, although "
            f"its layout says {_said(guess)}: so it guesses {best:.0%} of this prompt, and not {trial.right[guess]:.0%}"
        )
    if best < LOW:
        warn(
            f"the head {name!r} guesses {best:.0%} of this prompt ({trial.units} tokens) as the target continues it. "
            f"It may be a head of another target, or read other layers ({field}), or have been "
            "trained with another chat template or thinking mode"
        )


def _said(convention: Convention) -> str:
    return "the inputs of layers" if convention == "boundary" else "the outputs of layers"
