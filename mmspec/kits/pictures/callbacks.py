"""`callback_on_step_end` of a call: which tensors it receives after each round, and what it may change."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from mmspec.core.state import State
from mmspec.kits.pictures.rounds import Rounds
from mmspec.registry.numbers import integers, numbers, required

NULL, NULL_MASK = "negative_prompt_embeds", "negative_prompt_attention_mask"
WORDS = "negative_prompt"
"""An answer of a callback instead of tensors: words for every row, None where it stays as it is."""
TENSORS = ("tokens", "accepted", "preview", NULL, NULL_MASK)

Callback = Callable[[Any, int, int, dict[str, Any]], dict[str, Any] | None]


@runtime_checkable
class NamesTensors(Protocol):
    """A callback that says itself what it wants to see, as `PipelineCallback` of diffusers does."""

    tensor_inputs: Sequence[str]  # names of tensors, which take the place of `callback_on_step_end_tensor_inputs`


@runtime_checkable
class Renewing(Protocol):
    """A target whose calls can change, between two rounds, what guidance leads away from."""

    def renew_null(self, cache: Any, null: Tensor, null_mask: Tensor | None, units: Tensor, /) -> None:
        """Prefill the unconditional half again, from the next round on.

        `null` is what guidance leads away from, as in `Guiding`, maybe of another length than before; a `null_mask` of
        None: no padding. `units [batch, n, *unit]` has every row's committed units first; what follows them in a row is
        ignored. Refuses a call that began without guidance, and a condition of another shape.
        """


def names_for(callback: object, given: Sequence[str]) -> Sequence[str]:
    """The tensors that a callback receives: the ones that it names itself, or the `given` ones."""
    return callback.tensor_inputs if isinstance(callback, NamesTensors) else given


def refuse_steering(every: int | None, names: Sequence[str]) -> None:
    """Refuse a distance between calls of a callback that is no number above 0, and what depends on drafts there."""
    if every is None:
        return
    integers(steer_every=every)
    if every < 1:
        raise ValueError(f"steer_every counts units between two calls of the callback, at least 1, and not {every}")
    if "accepted" in names:
        raise ValueError("accepted is of one round, and with steer_every= the callback depends on no round")


def refuse_unknown(names: Sequence[str]) -> None:
    """Refuse names that are none of `TENSORS`."""
    unknown = [name for name in names if name not in TENSORS]
    if unknown:
        raise ValueError(f"callback_on_step_end_tensor_inputs has {', '.join(unknown)}; there is {', '.join(TENSORS)}")


@dataclass
class StepEnd:
    """Calls the user's callback after a round, and applies what it changed from the next round on."""

    # The pipeline; its `guidance_scale` may be changed, and its `guidance_of` and `guide` put that into effect
    pipe: Any
    target: Any  # the target; its unconditional half is prefilled again when the null condition changes
    callback: Callback | None  # the user's callback, or None
    names: Sequence[str]  # names of the tensors that it asked for
    # The null condition, which guidance leads away from, as in the target's prompt; None without guidance. A callback
    # may make it longer or shorter.
    null: Tensor | None
    null_mask: Tensor | None  # the mask of `null`; or None
    # Units between two calls of the callback, in which all rows have as many, so that what it sees and does depends on
    # no draft; None: it is called after every round
    every: int | None = None

    def __call__(self, state: State, rounds: Rounds) -> None:
        """Call back after round `rounds.number - 1` (0: the prefill), with the slowest row's units as the time step."""
        if self.callback is None or not (self.every is None or state.finished):
            return
        shown = {name: self._shown(name, state, rounds) for name in self.names}
        emitted = min(state.host.emitted)
        step = rounds.number - 1 if self.every is None else -(-emitted // self.every)
        answer = self.callback(self.pipe, step, emitted, dict(shown))
        changes = {} if answer is None else answer
        if not isinstance(changes, Mapping):
            raise TypeError(f"callback_on_step_end returns a dictionary or None, not {type(changes).__name__}")
        refuse_unknown([name for name in changes if name != WORDS])
        self._refuse_units(shown, changes)
        if state.finished and not state.waits:
            return
        self._guide(state)
        null = changes.get(NULL, self.null)
        mask = changes.get(NULL_MASK, self.null_mask if _shape(null) == _shape(self.null) else None)
        words = changes.get(WORDS)
        if words is not None and any(each is not None for each in words):
            self._refuse_unguided(null)
            null, mask = self.pipe.led_away(words, null, mask)
        if not (_same(null, self.null) and _same(mask, self.null_mask)):
            self._renew(state, null, mask)

    def _shown(self, name: str, state: State, rounds: Rounds) -> Tensor | None:
        if name == "tokens":
            return rounds.units(state)
        if name == "preview":
            pixels: Tensor = self.pipe.pixels_of(rounds.picture(state))
            return pixels
        if name == "accepted":
            assert state.step is not None
            return torch.minimum(state.step.verdict.length, state.step.count)
        own = self.null if name == NULL else self.null_mask
        return None if own is None else own.clone()  # so that a change in place is seen

    def _refuse_units(self, shown: dict[str, Any], changes: dict[str, Any]) -> None:
        for name in ("tokens", "accepted", "preview"):
            new = changes.get(name)
            if new is not None and new is not shown.get(name):
                raise ValueError(
                    f"the callback returned other {name}: what is emitted stands. It may change {WORDS}, {NULL}, "
                    f"{NULL_MASK} and pipe.guidance_scale, and stop with pipe._interrupt = True"
                )

    def _guide(self, state: State) -> None:
        scale, now = self.pipe.guidance_scale, self.pipe.guidance_of(state)
        if now is None and scale != 1:
            raise ValueError(f"this call began without guidance (1), so a callback cannot make it {scale}")
        if now is not None and scale != now:
            refuse_guidance(scale)
            self.pipe.guide(state, scale)
            state.player.renew()

    def _renew(self, state: State, null: Tensor | None, mask: Tensor | None) -> None:
        self._refuse_unguided(null)
        assert null is not None and self.null is not None
        if _but_length(null) != _but_length(self.null):
            raise ValueError(f"{NULL} is {list(self.null.shape)}, the callback made it {list(null.shape)}")
        if mask is not None and mask.shape != null.shape[:2]:
            raise ValueError(
                f"{NULL_MASK} is {list(mask.shape)} where {NULL} is {list(null.shape)}; return a mask of that length, "
                f"or {NULL} alone where there is no padding"
            )
        if state.cache is None:
            raise ValueError(
                "a call that shares passes cannot change what it leads away from: the cache is of all calls"
            )
        self.null, self.null_mask = null.to(self.null), None if mask is None else mask.to(self.null.device)
        committed = max(state.host.emitted) - 1  # the last unit of a row is the root of its next draft
        units = state.history[:, state.prompt_length : state.prompt_length + committed]
        self.target.renew_null(state.cache, self.null, self.null_mask, units)
        state.player.renew()

    def _refuse_unguided(self, null: Tensor | None) -> None:
        if null is None or self.null is None or not isinstance(self.target, Renewing):
            raise ValueError(f"there is no unconditional half whose {NULL} could be changed")


def _same(a: Tensor | None, b: Tensor | None) -> bool:
    if a is None or b is None:
        return a is b
    return a is b or (a.shape == b.shape and torch.equal(a.to(b.device), b))


def _shape(null: Tensor | None) -> torch.Size | None:
    return None if null is None else null.shape


def _but_length(null: Tensor) -> tuple[int, ...]:
    """The shape of a null condition `[row, …]` without its length; a negative prompt may have any."""
    return null.dim(), len(null), *null.shape[2:]


def refuse_guidance(scale: float) -> None:
    """Refuse a guidance scale below 1."""
    required(guidance_scale=scale)
    numbers(guidance_scale=scale)
    if not 1 <= scale < inf:
        raise ValueError(f"guidance_scale must be a finite number >= 1, got {scale}; 1 is no guidance")
