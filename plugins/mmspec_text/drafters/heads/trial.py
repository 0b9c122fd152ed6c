"""A trial of a head on the user's prompt: how often its first guess is the target's.

One pass of the target over a piece of the prompt, then one of the head with true features and true units: for a head of
the EAGLE family one for every meaning of its layer ids, for one of DFlash a block behind each of some units. A head
with wrong layers, of another target, or trained on another template is as lossless as any, and only slow: these numbers
are where it shows.

Some heads of EAGLE-3.1 say `norm_output`, and were trained with the state fed back as it is. A first guess is the same
in both ways; of a second one, behind a true unit and the head's own state, the better way is kept.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from mmspec.core.hidden import FINAL
from mmspec.core.state import State
from mmspec.core.tree import TreeIndex
from mmspec.core.types import Draft
from mmspec.hosts.features import Reading
from mmspec.hosts.masks import PassGeometry
from mmspec.hosts.prefill import PLAIN
from mmspec.hosts.target import TransformersTarget
from mmspec.registry.warn import warn
from mmspec_text.drafters.heads.cache import HeadCache
from mmspec_text.drafters.heads.dflash.context import Context
from mmspec_text.drafters.heads.dflash.network import DFlashNetwork
from mmspec_text.drafters.heads.eagle.family import Convention
from mmspec_text.drafters.heads.eagle.features import Features
from mmspec_text.drafters.heads.eagle.network import EagleNetwork
from mmspec_text.drafters.heads.head import Head
from mmspec_text.drafters.heads.pathwise.head import PathHead, PrefixHead
from mmspec_text.drafters.heads.rows import Rows

UNITS, FEWEST = 64, 16
"""Units of a trial, and the fewest from which its numbers say anything."""
LOW = 0.1
"""A head that guesses less of a prompt is reported; trained ones guess a third to two thirds."""
BLOCKS = 16
"""Most blocks of a trial."""


@dataclass(frozen=True)
class Trial:
    """The result.

    Attributes:
        units: Units that were guessed.
        right: Share of guesses that are the target's likeliest unit, by the meaning of the layer ids.
        chosen: The meaning that guessed best; of equal ones the one that the layout suggests.
        second: Share of second guesses that are right, by whether the state that is fed back is normalised; empty where
            the head does not say that it is.
    """

    units: int
    right: dict[Convention, float]
    chosen: Convention
    second: dict[bool, float] = field(default_factory=dict)

    @property
    def feeds_normed(self) -> bool:
        """Whether the state that is fed back is to be normalised, for a head that says so."""
        return self.second.get(True, 0.0) >= self.second.get(False, 0.0)


def trial_ids(state: State, inputs: Any) -> Tensor | None:
    """The last ids `[unit]` of the longest prompt; None if they are too few, or if a prompt has more than ids."""
    if isinstance(inputs, Mapping) and not inputs.keys() <= PLAIN:
        return None
    row = int(state.pads.argmin())
    ids: Tensor = state.history[row, int(state.pads[row]) : state.prompt_length][-UNITS:]
    return ids if len(ids) >= FEWEST else None


@torch.inference_mode()
def try_rows(network: Head, target: TransformersTarget, features: Features, ids: Tensor) -> Trial:
    """Try a head on `ids [unit]`, without padding."""
    with Reading(target.model_info, features.boundaries) as reading:
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
    chosen = max(right, key=lambda name: right[name])
    second: dict[bool, float] = {}
    if isinstance(network, EagleNetwork) and network.architecture.fused and network.architecture.norm_output:
        columns = features.columns(chosen, reading.states.shape[-1] // len(features.boundaries))
        for normed in (True, False):
            network.feeds_normed = normed
            guesses = second_guesses(network, reading.states[:, :-2, columns], ids[None, 1:])[0, :-1].argmax(-1)
            second[normed] = float((guesses == theirs[1:].to(guesses.device)).float().mean())
        network.feeds_normed = second[True] >= second[False]
    return Trial(len(theirs), right, chosen, second)


def teacher_forced(network: Head, features: Tensor, units: Tensor) -> Tensor:
    """Logits `[batch, row, vocab]` of rows with true features `[batch, row, width]` and units `[batch, row]`."""
    rows, columns = units.shape
    slots = HeadCache(network, rows, columns, units.device).slots
    slots.open(0, columns)
    chain = TreeIndex.chain(columns, units.device)
    geometry = PassGeometry(slots.length, chain.ancestor, chain.depth, slots.visible)
    return network.logits(network.passed(units, network.taken_in(features), slots, geometry))


def second_guesses(network: EagleNetwork, features: Tensor, units: Tensor) -> Tensor:
    """Logits `[batch, row, vocab]` behind each row and one more unit, whose state is the one that the head feeds back.

    Args:
        network: The head.
        features: `[batch, row, width]`: true features.
        units: `[batch, row + 1]` int64: the rows' units, and the one behind the last.
    """
    batch, rows = features.shape[:2]
    slots = HeadCache(network, batch, 2 * rows, units.device).slots
    # Node t of the first half is row t; node rows + t is its child, which sees the rows up to t and itself.
    index = TreeIndex.static([*range(-1, rows - 1), *range(rows)], units.device)
    states = network.taken_in(features)
    for first, half in ((0, units[:, :-1]), (rows, units[:, 1:])):
        slots.open(first, rows)
        seen = index.ancestor[:, first : first + rows, : first + rows]
        geometry = PassGeometry(slots.length, seen, index.depth[:, : first + rows], slots.visible)
        states = network.passed(half, states, slots, geometry)
    return network.logits(states)


def report(
    trial: Trial,
    name: str,
    guess: Convention = "boundary",
    layer_ids: Sequence[int] = (),
    field: str = "",
) -> None:
    """Warn if layer ids (`field` of a config; "" if it has none) mean other layers, or if the head guesses badly."""
    best = trial.right[trial.chosen]
    if trial.chosen != guess:
        warn(
            f"the layer ids {', '.join(map(str, layer_ids))} of the head {name!r} name {_said(trial.chosen)}, although "
            f"its layout says {_said(guess)}: so it guesses {best:.0%} of this prompt, and not {trial.right[guess]:.0%}"
        )
    if not trial.feeds_normed:
        warn(
            f"the head {name!r} says norm_output, and was trained with the state fed back as it is: so it guesses "
            f"{trial.second[False]:.0%} of second tokens of this prompt, and not {trial.second[True]:.0%}"
        )
    if best < LOW:
        layers = f"or read other layers ({field}), " if field else ""
        warn(
            f"the head {name!r} guesses {best:.0%} of this prompt ({trial.units} tokens) as the target continues it. "
            f"It may be a head of another target, {layers}or have been trained with another chat template or thinking "
            "mode"
        )


def _said(convention: Convention) -> str:
    return "the inputs of layers" if convention == "boundary" else "the outputs of layers"


@torch.inference_mode()
def try_blocks(
    network: DFlashNetwork, target: TransformersTarget, boundaries: tuple[int, ...], convention: Convention, ids: Tensor
) -> Trial:
    """Try a DFlash head on `ids [unit]`, without padding: one block behind each of some units, whose first unit counts.

    `convention` is what the layer ids of the head mean.
    """
    with Reading(target.model_info, boundaries) as reading:
        scores = target.model(input_ids=ids[None], use_cache=False).logits[0]
    assert reading.states is not None
    roots = torch.linspace(1, len(ids) - 1, min(BLOCKS, len(ids) - 1), device=ids.device).long()
    context = Context(network, len(roots), len(ids), ids.device)
    features = reading.states.expand(len(roots), -1, -1)
    context.append(Rows.at_left(features, roots))
    logits = context.block(ids[roots]).grow(Draft.alone(ids[roots]), 0).logits
    assert logits is not None
    theirs = scores[roots, : network.vocab].argmax(-1)
    right = float((logits[:, 0].argmax(-1) == theirs.to(logits.device)).float().mean())
    return Trial(len(roots), {convention: right}, convention)


@torch.inference_mode()
def try_paths(head: PathHead | PrefixHead, target: TransformersTarget, ids: Tensor) -> Trial:
    """Try a head that steps along paths on `ids [unit]`, without padding: one drafted unit behind every prefix."""
    with Reading(target.model_info, (FINAL,)) as reading:
        arguments: dict[str, Any] = {"input_ids": ids[None]}
        scores = target.model(**arguments, use_cache=False).logits[0]
    assert reading.states is not None
    logits = head.logits(states_of(head, reading.states[:, :-2], ids[None, 1:-1]).transpose(0, 1))[:, 0]
    theirs = scores[1:-1, : logits.shape[-1]].argmax(-1)  # the unit behind x_{t+1}, which row t guesses
    right = float((logits.argmax(-1) == theirs.to(logits.device)).float().mean())
    return Trial(len(theirs), {"boundary": right}, "boundary")


def states_of(head: PathHead | PrefixHead, features: Tensor, units: Tensor) -> Tensor:
    """States `[batch, row, size]` behind every unit of a text as the root.

    Args:
        head: The head.
        features: `[batch, row, width]`: the target's, of the unit before.
        units: `[batch, row]` int64.
    """
    if not isinstance(head, PrefixHead):
        return head.rooted(features, units)
    rows, columns = units.shape
    slots = HeadCache(head, rows, columns, units.device).slots
    slots.open(0, columns)
    chain = TreeIndex.chain(columns, units.device)
    geometry = PassGeometry(slots.length, chain.ancestor, chain.depth, slots.visible)
    return head.passed(units, head.taken_in(features), slots, geometry)
