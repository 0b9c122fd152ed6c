"""The trace of a call: which round emitted which unit, and what every draft was.

A trace is made by a callback after every round (`Decoder.generate(on_step=trace.step)`). It reads the device in every
round, so that a traced call is slower than another one; its units are the same. Discrete units only.

In a notebook a trace is HTML without scripts: units in the colour of their round, which opens to show its draft.
`mmspec view text` shows the same while a text is written.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from typing import Any

from torch import Tensor

from mmspec.core.distributions import Categorical
from mmspec.core.state import State
from mmspec.core.types import Scores, Step

Spell = Callable[[int], str]
"""The text of a unit."""

APART = 67
"""Degrees of hue between two rounds, so that neighbours differ."""


@dataclass(frozen=True)
class TracedNode:
    unit: int
    parent: int  # number of the parent among the round's nodes; -1: the root
    accepted: bool  # whether the rule accepted it
    probability: float  # the target's probability of the unit behind its parent


@dataclass(frozen=True)
class TracedRound:
    """The trace of a round in one row."""

    first: int  # number of its first unit among those that the row emitted
    units: tuple[int, ...]  # the units that it emitted, the bonus or replacement last
    probabilities: tuple[float, ...]  # the target's probability of each
    margins: tuple[float, ...]  # by how much the likeliest unit was likelier than the second, where each was drawn
    nodes: tuple[TracedNode, ...]  # the draft


@dataclass
class Trace:
    """The rounds of a call by row; the first of each is the prefill, which emits one unit without a draft."""

    spell: Callable[[int], str] = field(default="{} ".format, repr=False)  # the text of a unit; default: its number
    # For every row its rounds, in order; rounds in which the row emitted nothing are left out
    rows: list[list[TracedRound]] = field(default_factory=list)

    def step(self, state: State) -> None:
        """Add what the last round did; called after its host sync."""
        step = state.step
        assert step is not None
        if step.draft.units.is_floating_point() or step.draft.units.ndim > 2:
            raise ValueError("a trace shows units of a vocabulary; this target's units are vectors")
        self.rows = self.rows or [[] for _ in range(state.rows)]
        for row, round in enumerate(_rounds(state, step, [_emitted(rounds) for rounds in self.rows])):
            if round.units:
                self.rows[row].append(round)

    def to_dict(self) -> dict[str, Any]:
        """The trace as lists, numbers and mappings."""
        return {"rows": [[asdict(round) for round in rounds] for rounds in self.rows]}

    def _repr_html_(self) -> str:
        """The display of a notebook: the text in colours of its rounds, each of which opens to show its draft."""
        return _page(self.rows, self.spell)


def _emitted(rounds: Sequence[TracedRound]) -> int:
    """Units that a row had emitted before."""
    return rounds[-1].first + len(rounds[-1].units) if rounds else 0


def _rounds(state: State, step: Step, before: Sequence[int]) -> list[TracedRound]:
    """A settled round in every row; `before` is how many units each had emitted."""
    draft = step.draft
    probability, margin = _certainty(step.scores)  # [batch, node, vocab], [batch, node]
    parent = draft.index.parent.expand(draft.units.shape)
    own = _at(probability, parent.clamp(min=0), draft.units)
    columns = draft.units.tolist(), parent.tolist(), draft.valid.tolist(), own.tolist(), state.output()
    found = []
    for row, (units, parents, valid, owns, output) in enumerate(zip(*columns, strict=True)):
        new = output[before[row] :].tolist()
        path = [node for node in step.verdict.path[row].tolist() if node >= 0]
        drafted = [node for node in range(1, len(units)) if valid[node]]
        number = {node: place for place, node in enumerate(drafted)}
        nodes = tuple(
            TracedNode(units[node], number.get(parents[node], -1), node in path[: len(new)], owns[node])
            for node in drafted
        )
        where = [0, *path][: len(new)]  # the nodes behind which the units were drawn
        chances, margins = probability[row, where, new].tolist(), margin[row, where].tolist()
        found.append(TracedRound(before[row], tuple(new), tuple(chances), tuple(margins), nodes))
    return found


def _certainty(scores: Scores) -> tuple[Tensor, Tensor]:
    """The target's probabilities `[batch, node, vocab]`, and how far the two best are apart `[batch, node]`.

    Of a greedy call these are the probabilities before the greedy choice.
    """
    if isinstance(scores.distribution, Categorical):
        probability = scores.distribution.on(None)
    else:
        assert scores.logits is not None, "units of a vocabulary have logits"
        probability = scores.logits.float().softmax(-1)
    best = probability.topk(min(2, probability.shape[-1]), -1).values
    return probability, best[..., 0] - best[..., -1]


def _at(probability: Tensor, node: Tensor, unit: Tensor) -> Tensor:
    """`probability [batch, node, vocab]` of `unit [batch, n]` behind `node [batch, n]`."""
    return probability.flatten(1).gather(1, node * probability.shape[-1] + unit)


def _page(rows: Sequence[Sequence[TracedRound]], spell: Spell) -> str:
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
