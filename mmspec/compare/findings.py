"""Two recordings of one script, compared call by call and line by line.

Where something differs, a second plain run tells three things apart: outputs that the script itself does not repeat,
differences that a near-tie explains, and wrong outputs.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from mmspec.compare.recording import RecordedCall, Recording

if TYPE_CHECKING:
    from torch import Tensor

#: `follows`: the call began differently, because an earlier one had differed. `unsteady`: two plain runs differ, too.
#: `half`: the ids are not transformers', which in half precision nothing promises: another width rounds
#: differently. `left alone`: mmspec refuses the call as documented, or it raises either way. `not supported`: mmspec
#: refuses it, and transformers decodes it. Of these two, the ids are transformers' own in both runs, and prove nothing.
Kind = Literal["same", "near-tie", "half", "follows", "wrong", "unsteady", "left alone", "not supported"]
_DIFFERENT: frozenset[Kind] = frozenset({"near-tie", "half", "follows", "wrong", "unsteady"})


@dataclass(frozen=True)
class Finding:
    kind: Kind  # the result in a word
    text: str  # the result in a line


def differing(plain: Recording, ours: Recording) -> bool:
    """True if anything is not the same: calls, ids, lines."""
    return (
        len(plain.calls) != len(ours.calls)
        or any(not _same(plain, ours, call.number) for call in plain.calls)
        or plain.stdout != ours.stdout
    )


def to_judge(plain: Recording, ours: Recording) -> list[int]:
    """Calls that began alike and have different ids, which the scores of another plain run can judge."""
    return [
        one.number
        for one, other in zip(plain.calls, ours.calls, strict=False)
        if _began_alike(plain, ours, one, other)
        and not other.left_alone
        and one.number in plain.ids.keys() & ours.ids.keys()
        and not _same(plain, ours, one.number)
    ]


def of_calls(plain: Recording, ours: Recording, again: Recording | None) -> list[Finding]:
    """A finding for every call of the plain run; `again` is a second run without mmspec, which judged the calls of
    `to_judge`, None if nothing differs.
    """
    found: list[Finding] = []
    for one in plain.calls:
        number = one.number
        if number > len(ours.calls):
            found.append(Finding("follows" if any_differs(found) else "wrong", "not made with mmspec"))
        elif _is_not_supported(ours.calls[number - 1]):  # whatever the ids are: they are transformers' own
            found.append(Finding("not supported", ours.calls[number - 1].left_alone))
        elif _same(plain, ours, number):
            found.append(_of_equal_ids(ours.calls[number - 1]))
        else:
            found.append(_difference(plain, ours, again, number, any_differs(found)))
    return found


def of_stdout(plain: Recording, ours: Recording, again: Recording | None, differs: bool) -> Finding:
    """The finding for the lines that the script printed, where lines that two plain runs print differently do not
    count; `differs`: the ids of some call differ, which the lines may then show.
    """
    if plain.stdout == ours.stdout:
        return Finding("same", "same")
    assert again is not None
    if len(again.stdout) != len(plain.stdout):
        return Finding("unsteady", "two plain runs print different numbers of lines")
    if len(ours.stdout) != len(plain.stdout):
        text = f"{len(plain.stdout)} lines plainly, {len(ours.stdout)} with mmspec"
        return Finding("follows" if differs else "wrong", text)
    lines = list(enumerate(zip(plain.stdout, ours.stdout, again.stdout, strict=True), 1))
    for number, (one, other, second) in lines:
        if one != other and one == second:
            text = f"line {number}: {_shown(one)} plainly, {_shown(other)} with mmspec"
            return Finding("follows" if differs else "wrong", text)
    numbers = ", ".join(str(number) for number, (one, _, second) in lines if one != second)
    return Finding("same", f"same, but for what two plain runs print differently too (line {numbers})")


def any_differs(found: list[Finding]) -> bool:
    """True if the ids of some call differ."""
    return any(finding.kind in _DIFFERENT for finding in found)


def _is_not_supported(ours: RecordedCall) -> bool:
    """True if transformers can decode the call, and mmspec refuses it without documenting that."""
    return bool(ours.left_alone) and not ours.documented and not ours.raised


def _of_equal_ids(ours: RecordedCall) -> Finding:
    """Equal ids prove nothing where mmspec did not make them."""
    if ours.raised:
        why = f": {ours.left_alone}" if ours.left_alone else ""
        return Finding("left alone", f"raises {ours.raised} either way{why}")
    return Finding("left alone", ours.left_alone) if ours.left_alone else Finding("same", "same")


def _difference(plain: Recording, ours: Recording, again: Recording | None, number: int, differs: bool) -> Finding:
    one, other = plain.calls[number - 1], ours.calls[number - 1]
    where = _where(plain, ours, one, other)
    if again is None or number > len(again.calls) or not _same(plain, again, number):
        return Finding("unsteady", f"two plain runs differ too, so nothing can be said; seed the script ({where})")
    if not _began_alike(plain, ours, one, other):
        why = "it began with another prompt or another state of torch's generators"
        return Finding(
            "follows" if differs else "wrong", f"{where}; {why}" + (", as calls before differ" if differs else "")
        )
    if other.half and not other.width:
        return Finding("half", f"{where}; the weights are in half precision")
    judged = again.calls[number - 1]
    if judged.wrong:
        return Finding("wrong", judged.wrong if judged.wrong.startswith("row ") else f"{where}; {judged.wrong}")
    if judged.near_ties:
        ties = ", ".join(f"row {row}, new token {at}: margin {margin:.1e}" for row, at, margin in judged.near_ties)
        return Finding("near-tie", f"{where}; a near-tie ({ties})")
    if other.width and other.width == one.width:
        return Finding("wrong", f"{where}; all passes of both have {one.width} nodes, so that no rounding explains it")
    return Finding("wrong", f"{where}; whether this is a near-tie is not known")


def _same(plain: Recording, ours: Recording, number: int) -> bool:
    import torch

    one, other = plain.ids.get(number), ours.ids.get(number)
    if one is None or other is None:
        return one is other and plain.calls[number - 1].raised == ours.calls[number - 1].raised
    return one.dtype == other.dtype and torch.equal(one, other)


def _began_alike(plain: Recording, ours: Recording, one: RecordedCall, other: RecordedCall) -> bool:
    """True if both calls began with the same prompt and generators."""
    import torch

    a, b = plain.ids.get(one.number), ours.ids.get(one.number)
    if one.began != other.began or one.prompt != other.prompt:
        return False
    return a is None or b is None or torch.equal(a[:, : one.prompt], b[:, : one.prompt])


def _where(plain: Recording, ours: Recording, one: RecordedCall, other: RecordedCall) -> str:
    """The first difference of the ids, in words."""
    a, b = plain.ids.get(one.number), ours.ids.get(one.number)
    if a is None or b is None:
        ends = [call.raised or "a result" for call in (one, other)]
        return f"{ends[0]} plainly, {ends[1]} with mmspec"
    if len(a) != len(b):
        return f"{len(a)} rows plainly, {len(b)} with mmspec"
    width = min(a.shape[1], b.shape[1])
    different = (a[:, :width] != b[:, :width]).nonzero()
    if not len(different):
        return f"{a.shape[1] - one.prompt} new tokens plainly, {b.shape[1] - one.prompt} with mmspec"
    row, column = min(different.tolist(), key=lambda place: (place[1], place[0]))
    return _tokens(row, column - one.prompt, a[row, column], b[row, column])


def _tokens(row: int, position: int, one: "Tensor", other: "Tensor") -> str:
    place = f"new token {position}" if position >= 0 else "the prompt"
    return f"row {row}, {place}: {int(one)} plainly, {int(other)} with mmspec"


def _shown(line: bytes) -> str:
    text = line.decode(errors="replace").rstrip("\n")
    return repr(text if len(text) <= 60 else text[:57] + "…")
