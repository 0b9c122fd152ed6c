"""The boundaries of the target's layers that a head reads, in every meaning that its layer ids may have."""

from collections.abc import Sequence
from dataclasses import dataclass

from mmspec_text.drafters.heads.stored import Convention, HeadCheckpoint


@dataclass(frozen=True)
class Features:
    """The features that a head may read."""

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


def features_of(
    head: HeadCheckpoint, layers: int, field: str, order: Sequence[Convention], usual: Sequence[int] = ()
) -> Features:
    """The features that a head reads of a target of so many layers; refuses targets that have not the layers.

    `field` is the entry of its config that names layers, `order` what layer ids may mean, the likeliest first, and
    `usual` the ids where its config names none, as the first of these means them; (): they must be named.
    """
    what, count = f"the head {head.name!r}", head.architecture.features
    ids = head.layer_ids or tuple(usual)
    if not ids:
        raise ValueError(
            f"{what} reads {count} states, and its config does not say which of the target's {layers} layers they are "
            f"of ({field})"
        )
    if len(ids) != count:
        raise ValueError(f"{what} reads {count} states and names {len(ids)} layers ({field})")
    meant = {name: ids if name == "boundary" else tuple(i + 1 for i in ids) for name in order}
    possible = {name: found for name, found in meant.items() if all(0 <= i <= layers for i in found)}
    if not possible:
        raise ValueError(
            f"{what} reads the layers {', '.join(map(str, ids))} of its target, and this one has {layers}: it is a "
            "head of another target"
        )
    return Features(possible)
