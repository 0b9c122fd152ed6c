"""A trace as HTML without scripts, for notebooks: units in the colour of their round, which opens to show its draft.

`mmspec view text` shows the same while a text is written.
"""

from collections.abc import Callable, Iterator, Sequence
from html import escape

from mmspec.core.traced_round import TracedRound

Spell = Callable[[int], str]
"""The text of a unit."""

APART = 67
"""Degrees of hue between two rounds, so that neighbours differ."""


def page(rows: Sequence[Sequence[TracedRound]], spell: Spell) -> str:
    """All rows of a trace, one below the other."""
    return "".join(
        f'<div style="white-space:pre-wrap;font-family:monospace;line-height:1.7">{_row(rounds, spell)}</div>'
        for rounds in rows
    )


def _row(rounds: Sequence[TracedRound], spell: Spell) -> str:
    return "".join(_round(round, number, spell) for number, round in enumerate(rounds))


def _round(round: TracedRound, number: int, spell: Spell) -> str:
    """The units of a round, which open to show its draft, if it had one."""
    accepted = sum(node.accepted for node in round.nodes)
    colour = f"background:hsl({APART * number % 360} 60% 55% / .35)"
    each = zip(round.units, round.probabilities, round.margins, strict=True)
    units = "".join(
        _unit(spell(unit), probability, margin, place >= accepted)
        for place, (unit, probability, margin) in enumerate(each)
    )
    if not round.nodes:
        return f'<span style="{colour}">{units}</span>'
    draft = "".join(_nodes(round, spell))
    said = f"Round {number}: {accepted} of {len(round.nodes)} drafted units accepted"
    return (
        f'<details style="display:inline"><summary style="display:inline;cursor:pointer;{colour}">{units}</summary>'
        f"<table><caption>{said}</caption>{draft}</table></details>"
    )


def _unit(text: str, probability: float, margin: float, own: bool) -> str:
    """A unit, which says how likely it was; the target's own choice is underlined."""
    line = "underline" if own else "none"
    said = f"probability {probability:.3f}, ahead of the second by {margin:.3f}"
    return f'<span title="{said}" style="text-decoration:{line}">{escape(text)}</span>'


def _nodes(round: TracedRound, spell: Spell, parent: int = -1, depth: int = 0) -> Iterator[str]:
    """The draft as a tree, a node a line, children below their parent; what was accepted is bold."""
    for number, node in enumerate(round.nodes):
        if node.parent == parent:
            branch = "  " * depth + ("└ " if depth else "")
            text = escape(repr(spell(node.unit))[1:-1])
            weight = "bold" if node.accepted else "normal"
            yield (
                f'<tr style="font-weight:{weight}"><td style="text-align:left;white-space:pre">{branch}{text}</td>'
                f"<td>{node.probability:.3f}</td></tr>"
            )
            yield from _nodes(round, spell, number, depth + 1)
