"""Two recordings of one script, call by call and line by line.

A second plain run, made only where something differs, tells three things apart: what the script does not repeat itself,
what a near-tie explains, and what is wrong.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from mmspec.compare.recording import Call, Recording

if TYPE_CHECKING:
    from torch import Tensor

#: `follows`: the call began differently, because an earlier one had differed. `unsteady`: two plain runs differ too.
#: `left alone`: mmspec refuses it as documented, or it raises either way. `not supported`: mmspec refuses it, and stock
#: decodes it. Of these two, the ids are transformers' own in both runs, and prove nothing.
Kind = Literal["same", "near-tie", "follows", "wrong", "unsteady", "left alone", "not supported"]
_PARTED: frozenset[Kind] = frozenset({"near-tie", "follows", "wrong", "unsteady"})


@dataclass(frozen=True)
class Outcome:
    """What became of one call, or of what the script printed.

    Attributes:
        kind: In a word.
        text: In a line.
    """

    kind: Kind
    text: str


def differing(plain: Recording, ours: Recording) -> bool:
    """Whether anything is not the same: calls, ids, lines."""
    return (
        len(plain.calls) != len(ours.calls)
        or any(not _same(plain, ours, call.number) for call in plain.calls)
        or plain.stdout != ours.stdout
    )


def to_judge(plain: Recording, ours: Recording) -> list[int]:
    """Calls whose ids differ although they began alike, and that can be judged by the scores of a plain run."""
    return [
        one.number
        for one, other in zip(plain.calls, ours.calls, strict=False)
        if _alike(plain, ours, one, other) and not other.left_alone and one.number in plain.ids.keys() & ours.ids.keys()
        if not _same(plain, ours, one.number)
    ]


def outcomes(plain: Recording, ours: Recording, again: Recording | None) -> list[Outcome]:
    """One for every call of the plain run.

    Args:
        plain: Without mmspec.
        ours: With it.
        again: Without it once more, with `to_judge` judged; None if nothing differs.
    """
    found: list[Outcome] = []
    for one in plain.calls:
        number = one.number
        if number > len(ours.calls):
            found.append(Outcome("follows" if any_parted(found) else "wrong", "not made with mmspec"))
        elif _beyond(ours.calls[number - 1]):  # whatever the ids are: transformers made them
            found.append(Outcome("not supported", ours.calls[number - 1].left_alone))
        elif _same(plain, ours, number):
            found.append(_alike_outcome(ours.calls[number - 1]))
        else:
            found.append(_difference(plain, ours, again, number, any_parted(found)))
    return found


def printed(plain: Recording, ours: Recording, again: Recording | None, parted: bool) -> Outcome:
    """What became of the lines that the script printed; lines that two plain runs print differently do not count.

    Args:
        plain: Without mmspec.
        ours: With it.
        again: Without it once more; None if nothing differs.
        parted: Whether the ids of some call differ, which lines then show.
    """
    if plain.stdout == ours.stdout:
        return Outcome("same", "same")
    assert again is not None
    if len(again.stdout) != len(plain.stdout):
        return Outcome("unsteady", "two plain runs print different numbers of lines")
    if len(ours.stdout) != len(plain.stdout):
        text = f"{len(plain.stdout)} lines plainly, {len(ours.stdout)} with mmspec"
        return Outcome("follows" if parted else "wrong", text)
    lines = list(enumerate(zip(plain.stdout, ours.stdout, again.stdout, strict=True), 1))
    moving = [number for number, (one, _, second) in lines if one != second]
    for number, (one, other, second) in lines:
        if one != other and one == second:
            text = f"line {number}: {_shown(one)} plainly, {_shown(other)} with mmspec"
            return Outcome("follows" if parted else "wrong", text)
    numbers = ", ".join(map(str, moving))
    return Outcome("same", f"same, but for what two plain runs print differently too (line {numbers})")


def any_parted(found: list[Outcome]) -> bool:
    """Whether the ids of some call differ."""
    return any(outcome.kind in _PARTED for outcome in found)


def _beyond(ours: Call) -> bool:
    """Whether transformers can do it and mmspec, which says so nowhere, cannot."""
    return bool(ours.left_alone) and not ours.documented and not ours.raised


def _alike_outcome(ours: Call) -> Outcome:
    """What equal ids say: nothing, where mmspec made none of them, or nobody did."""
    if ours.raised:
        why = f": {ours.left_alone}" if ours.left_alone else ""
        return Outcome("left alone", f"raises {ours.raised} either way{why}")
    return Outcome("left alone", ours.left_alone) if ours.left_alone else Outcome("same", "same")


def _difference(plain: Recording, ours: Recording, again: Recording | None, number: int, parted: bool) -> Outcome:
    one, other = plain.calls[number - 1], ours.calls[number - 1]
    where = _where(plain, ours, one, other)
    if again is None or number > len(again.calls) or not _same(plain, again, number):
        return Outcome("unsteady", f"two plain runs differ too, so nothing can be said; seed the script ({where})")
    if not _alike(plain, ours, one, other):
        why = "it began with another prompt or another state of torch's generators"
        return Outcome(
            "follows" if parted else "wrong", f"{where}; {why}" + (", as calls before differ" if parted else "")
        )
    judged = again.calls[number - 1]
    if judged.wrong:
        return Outcome("wrong", judged.wrong if judged.wrong.startswith("row ") else f"{where}; {judged.wrong}")
    if judged.near_ties:
        ties = ", ".join(f"row {row}, new token {at}: margin {margin:.1e}" for row, at, margin in judged.near_ties)
        return Outcome("near-tie", f"{where}; a near-tie ({ties})")
    return Outcome("wrong", f"{where}; whether this is a near-tie is not known")


def _same(plain: Recording, ours: Recording, number: int) -> bool:
    import torch

    one, other = plain.ids.get(number), ours.ids.get(number)
    if one is None or other is None:
        return one is other and plain.calls[number - 1].raised == ours.calls[number - 1].raised
    return one.dtype == other.dtype and torch.equal(one, other)


def _alike(plain: Recording, ours: Recording, one: Call, other: Call) -> bool:
    """Whether both calls began with the same prompt and generators."""
    import torch

    a, b = plain.ids.get(one.number), ours.ids.get(one.number)
    if one.began != other.began or one.prompt != other.prompt:
        return False
    return a is None or b is None or torch.equal(a[:, : one.prompt], b[:, : one.prompt])


def _where(plain: Recording, ours: Recording, one: Call, other: Call) -> str:
    """The first difference of the ids, in words."""
    a, b = plain.ids.get(one.number), ours.ids.get(one.number)
    if a is None or b is None:
        ends = [call.raised or "a result" for call in (one, other)]
        return f"{ends[0]} plainly, {ends[1]} with mmspec"
    if len(a) != len(b):
        return f"{len(a)} rows plainly, {len(b)} with mmspec"
    width = min(a.shape[1], b.shape[1])
    apart = (a[:, :width] != b[:, :width]).nonzero()
    if not len(apart):
        return f"{a.shape[1] - one.prompt} new tokens plainly, {b.shape[1] - one.prompt} with mmspec"
    row, column = min(apart.tolist(), key=lambda place: (place[1], place[0]))
    return _tokens(row, column - one.prompt, a[row, column], b[row, column])


def _tokens(row: int, position: int, one: "Tensor", other: "Tensor") -> str:
    place = f"new token {position}" if position >= 0 else "the prompt"
    return f"row {row}, {place}: {int(one)} plainly, {int(other)} with mmspec"


def _shown(line: bytes) -> str:
    text = line.decode(errors="replace").rstrip("\n")
    return repr(text if len(text) <= 60 else text[:57] + "…")
