"""Which of the target's layer boundaries a head reads, in either meaning of a layer id."""

from dataclasses import dataclass

from mmspec.core.hidden import FINAL
from mmspec_text.drafters.heads.eagle.checkpoint import Checkpoint
from mmspec_text.drafters.heads.eagle.family import Convention

DEFAULTS = 3
"""Features that the usual boundaries 2, L // 2 and L - 3 are for."""


@dataclass(frozen=True)
class Features:
    """What a head may read."""

    choices: dict[Convention, tuple[int, ...]]  # boundaries for each meaning that is possible, the likelier one first

    @property
    def boundaries(self) -> tuple[int, ...]:
        """All of them, one choice behind the other."""
        return tuple(boundary for choice in self.choices.values() for boundary in choice)

    def columns(self, convention: Convention, hidden: int) -> slice:
        """Where the states of a choice are among the numbers of `boundaries`; a lone choice has all of them."""
        if len(self.choices) == 1:
            return slice(None)
        place, width = list(self.choices).index(convention), hidden * len(self.choices[convention])
        return slice(place * width, (place + 1) * width)


def features_of(checkpoint: Checkpoint, layers: int) -> Features:
    """What a head reads of a target.

    Raises:
        ValueError: The target has no such layers, or the config does not say which ones are meant.
    """
    a, ids, guess = checkpoint.architecture, checkpoint.layer_ids, checkpoint.layout.convention
    if not a.projected:
        return Features({guess: (FINAL,)})
    if not ids:
        usual = (2, layers // 2, layers - 3)
        if a.features != DEFAULTS or usual[2] < 0:
            raise ValueError(
                f"the head {checkpoint.name!r} reads {a.features} states, and its config does not say which of the "
                f"target's {layers} layers they are of (eagle_aux_hidden_state_layer_ids)"
            )
        return Features({guess: usual})
    if len(ids) != a.features:
        raise ValueError(f"the head {checkpoint.name!r} reads {a.features} states and names {len(ids)} layers")
    meant: dict[Convention, tuple[int, ...]] = {"boundary": ids, "output": tuple(i + 1 for i in ids)}
    order: tuple[Convention, ...] = ("boundary", "output") if guess == "boundary" else ("output", "boundary")
    possible = {name: meant[name] for name in order if all(0 <= i <= layers for i in meant[name])}
    if not possible:
        raise ValueError(
            f"the head {checkpoint.name!r} reads the layers {', '.join(map(str, ids))} of its target, and this one has "
            f"{layers}: it is a head of another target"
        )
    return Features(possible)
