"""A trial of a head on the user's prompt: how often its first guess is the target's.

One pass of the target over a piece of the prompt, then one of the head with true features and true units: for a head of
the EAGLE family one for every meaning of its layer ids, for one of DFlash a block behind each of some units. A head
with wrong layers, of another target, or trained on another template is as lossless as any, and only slow: these numbers
are where it shows.

Some heads of EAGLE-3.1 say `norm_output`, and were trained with the state fed back as it is, or say that it is not
normalised, and it was. A first guess is the same in both ways; of a second one, behind a true unit and the head's own
state, the way that it says is kept, unless the other one is clearly better.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from mmspec.core.state import State
from mmspec.core.types import Draft
from mmspec.hosts.features import Reading
from mmspec.hosts.prefill import PLAIN
from mmspec.hosts.target import TransformersTarget
from mmspec.registry.warn import warn
from mmspec_text.drafters.heads.block import Block
from mmspec_text.drafters.heads.dflash.network import DFlashNetwork
from mmspec_text.drafters.heads.eagle.network import EagleNetwork
from mmspec_text.drafters.heads.features import Features
from mmspec_text.drafters.heads.stored import Convention
from mmspec_text.drafters.heads.unroll import along, block_states

UNITS, FEWEST = 64, 16
"""Units of a trial, and the fewest from which its numbers say anything."""
LOW = 0.1
"""A head that guesses less of a prompt is reported; trained ones guess a third to two thirds."""
CLEAR = 0.1
"""A state is fed back in another way than a head says if so much more of the second guesses are right."""
BLOCKS = 16
"""Most blocks of a trial."""


@dataclass(frozen=True)
class Trial:
    """The result."""

    units: int  # units that were guessed
    right: dict[Convention, float]  # share of guesses that are the target's likeliest unit, by the layer ids' meaning
    chosen: Convention  # the meaning that guessed best; of equal ones the one that the layout suggests
    # Share of second guesses that are right, by whether the state that is fed back is normalised; empty where the head
    # does not say that it is
    second: dict[bool, float] = field(default_factory=dict)
    norm_output: bool = True  # what the head says

    @property
    def feeds_normed(self) -> bool:
        """True if the state that is fed back is to be normalised, for a head that says something."""
        said = self.norm_output
        return said != (self.second.get(not said, 0.0) - self.second.get(said, 0.0) > CLEAR)


def trial_ids(state: State, inputs: Any) -> Tensor | None:
    """The last ids `[unit]` of the longest prompt; None if they are too few, or if a prompt has more than ids."""
    if isinstance(inputs, Mapping) and not inputs.keys() <= PLAIN:
        return None
    row = int(state.pads.argmin())
    ids: Tensor = state.history[row, int(state.pads[row]) : state.prompt_length][-UNITS:]
    return ids if len(ids) >= FEWEST else None


@torch.inference_mode()
def try_head(head: Any, target: TransformersTarget, features: Features, ids: Tensor) -> Trial:
    """Try a head on `ids [unit]`, without padding; what it feeds back is set to what guesses best."""
    with Reading(target.model_info, features.boundaries) as reading:
        scores = target.model(input_ids=ids[None], use_cache=False).logits[0]
    assert reading.states is not None
    width = reading.states.shape[-1] // len(features.boundaries)
    right: dict[Convention, float] = {}
    for name in features.choices:
        known = reading.states[..., features.columns(name, width)]
        guesses = _block_guesses if isinstance(head, DFlashNetwork) else _guesses
        logits, place = guesses(head, known, ids)
        right[name] = _agreement(logits, scores[place])
    chosen = max(right, key=lambda name: right[name])
    second: dict[bool, float] = {}
    if isinstance(head, EagleNetwork) and (a := head.architecture).fused and (a.norm_output or a.norm_named):
        for normed in (True, False):
            head.feeds_normed = normed
            logits, place = _guesses(head, reading.states[..., features.columns(chosen, width)], ids, 2)
            second[normed] = _agreement(logits, scores[place])
        trial = Trial(len(place), right, chosen, second, a.norm_output)
        head.feeds_normed = trial.feeds_normed
        return trial
    return Trial(len(place), right, chosen)


def _guesses(head: Any, features: Tensor, ids: Tensor, number: int = 1) -> tuple[Tensor, Tensor]:
    """A head's guesses of that number behind units of a text: logits `[row, vocab]`, and the rows' places in it."""
    *_, scored = along(head, features[:, :-1], ids[None, :-1], number)
    scored = head.over_target(scored) if isinstance(head, EagleNetwork) else scored
    return scored[0], torch.arange(number, len(ids) - 1, device=ids.device)


def _block_guesses(head: DFlashNetwork, features: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """The first guesses of blocks, as in `_guesses`."""
    roots = torch.linspace(1, len(ids) - 1, min(BLOCKS, len(ids) - 1), device=ids.device).long()
    states = block_states(head, features, ids[None], roots[None])[0]
    logits = Block(head, states, head.sequel).grow(Draft.alone(ids[roots]), 0).logits
    assert logits is not None
    return logits[:, 0], roots


def _agreement(logits: Tensor, scores: Tensor) -> float:
    best = scores[:, : logits.shape[-1]].argmax(-1).to(logits.device)
    return float((logits.argmax(-1) == best).float().mean())


def report(trial: Trial, name: str, guess: Convention, layer_ids: Sequence[int], field: str) -> None:
    """Warn if layer ids (`field` of a config; "" if it has none) mean other layers, or if the head guesses badly."""
    best = trial.right[trial.chosen]
    if trial.chosen != guess:
        warn(
            f"the layer ids {', '.join(map(str, layer_ids))} of the head {name!r} name {_said(trial.chosen)}, although "
            f"its layout says {_said(guess)}: so it guesses {best:.0%} of this prompt, and not {trial.right[guess]:.0%}"
        )
    if trial.feeds_normed != trial.norm_output:
        way = "as it is" if trial.norm_output else "normalised"
        warn(
            f"the head {name!r} says norm_output {trial.norm_output}, and was trained with the state fed back {way}: "
            f"so it guesses {trial.second[trial.feeds_normed]:.0%} of second tokens of this prompt, and not "
            f"{trial.second[trial.norm_output]:.0%}"
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


@dataclass(frozen=True)
class Loaded:
    """The fate of a checkpoint: the report that a user reads when a head drafts badly."""

    name: str  # the head
    layout: str  # the layout in which it was stored
    taken: tuple[str, ...]  # keys that are used
    shared: tuple[str, ...]  # parts that are the target's
    ignored: tuple[str, ...]  # keys that are not used
    trial: Trial | None = None  # how it did on the first prompt that was long enough; None before

    def __str__(self) -> str:
        lines = [
            f"{self.name}: layout {self.layout}",
            f"taken: {', '.join(self.taken)}",
            f"shared with the target: {', '.join(self.shared) or 'nothing'}",
            f"ignored: {', '.join(self.ignored) or 'nothing'}",
        ]
        if self.trial is not None:
            right = self.trial.right
            ways = {name: f" if layer ids mean {name}" if len(right) > 1 else "" for name in right}
            shares = ", ".join(f"{share:.0%}{ways[name]}" for name, share in right.items())
            lines.append(f"guesses of {self.trial.units} tokens of the prompt: {shares}")
            fed = {True: "if the state fed back is normalised", False: "if it is not"}
            second = ", ".join(f"{share:.0%} {fed[normed]}" for normed, share in self.trial.second.items())
            lines += [f"second guesses: {second}"] if second else []
        return "\n".join(lines)
