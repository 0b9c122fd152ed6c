"""`sjd-pac`: a Jacobi window with siblings at its front.

SJD-PAC (Kang et al., arXiv 2603.18599). Adaptive continuation: behind a rejection the window keeps what the rule drew
at its nodes, as in every coupled window here. Proactive drafting: most rounds of a window accept one unit, since what
stands behind a corrected unit was drawn before that correction. So each of the first `depth` places has `siblings`
units, the window's own first and the others drawn from the same distribution without replacement, and these levels are
a full tree: every unit of a place stands below every unit of the place before. The window goes on below its own units.
The paper's K is `siblings`; its D counts the root, D = `depth` + 1. There the tree stands after rejections; here a
place has siblings in every round in which the target has drawn it, so that all rounds have one shape.
Guarantee: exact. A place's units depend on nothing below or beside it, so that each is a draw from the distribution
that it reports, given the path above it: `lossless` under `recursive-coupling`. Under `match` siblings are the first of
the race q / E with the target's own noise E of that place: `invariant`.
Knobs: `siblings` and `depth`: more accept more, and cost siblings^depth nodes a pass; `init` as of `jacobi`.
"""

from dataclasses import dataclass, replace
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import pad

from mmspec.core.distributions import Categorical, Mixed, drawn_part, take_nodes
from mmspec.core.drafters.jacobi import Window
from mmspec.core.drafters.shapes.siblings import distribution_of
from mmspec.core.forced import with_forced
from mmspec.core.noise import DraftNoise
from mmspec.core.once import known
from mmspec.core.protocols import Target
from mmspec.core.state import State
from mmspec.core.transfer import on_device
from mmspec.core.types import Draft, Step
from mmspec.registry.options import option
from mmspec_image.drafters.jacobi import ImageJacobi, Init, JacobiOptions
from mmspec_image.specs import SJD_PAC


@dataclass(frozen=True)
class SjdPacOptions:
    init: Init = option("above", "what fills slots that enter the window")
    siblings: Annotated[int, Field(ge=1, le=64)] = option(
        4, "units of each place at the front, the window's own included"
    )
    depth: Annotated[int, Field(ge=1, le=4)] = option(
        2, "places at the front with siblings; siblings^depth nodes stand on the last one"
    )


@dataclass(frozen=True)
class Front:
    """The tree of a draft: the nodes `0 … k - 1` are the window, the nodes behind them siblings, level by level."""

    parents: tuple[int, ...]  # parents of the drafted nodes, -1 for the root
    place: Tensor  # the place of every node behind the window, `[1, m]`
    rank: Tensor  # how many units of its place were drawn before its own, `[1, m]`
    # `[node, k + 1]`: for every node, the root included, the node of every depth on a line through it: its path, below
    # it the first children, and below the siblings' last level the window
    line: Tensor


@dataclass(frozen=True)
class Memory:
    window: Window | None  # the window's own memory
    k: int = 0  # units of the last window, which say what its tree was


class SjdPac:
    needs, offers = SJD_PAC.needs, SJD_PAC.offers

    def __init__(self, options: SjdPacOptions = SjdPacOptions()) -> None:
        self.options = options
        self.window = ImageJacobi(JacobiOptions(init=options.init))
        self._siblings = options.siblings

    def bind(self, target: Target) -> None:
        """Take the grid from the target; a place has no more units than there are codes."""
        self.window.bind(target)
        assert target.vocab is not None
        self._siblings = min(self.options.siblings, target.vocab)

    def width(self, k: int) -> int:
        return len(self._front(k, torch.device("cpu")).parents)

    def start(self, state: State, inputs: Any) -> Memory:
        return Memory(self.window.start(state, inputs))

    def propose(self, state: State, k: int, noise: DraftNoise) -> Draft:
        window: Window | None = state.memory.window
        state.memory = Memory(window, k)
        chain = with_forced(self.window.drafted(state.live, window, k, noise), state.warp, state.live, k)
        q, drawn = drawn_part(chain.distribution, torch.ones_like(chain.valid))
        front = self._front(k, chain.units.device)
        if self._siblings > 1 and isinstance(q, Categorical):
            return self._with_siblings(chain, q, drawn, front, noise)
        if self._siblings == 1 or not state.budget.fixed:
            return chain
        # Nothing was drawn yet, or without noise: all rounds of a call of one shape have the same tree.
        units, valid = (pad(part, (0, front.place.shape[1])) for part in (chain.units, chain.valid))
        return Draft.tree(units, front.parents, valid=valid)

    def _with_siblings(self, chain: Draft, q: Categorical, drawn: Tensor, front: Front, noise: DraftNoise) -> Draft:
        """The tree of a window: units `drawn [batch, k]` were drawn from q, the others are point masses."""
        deep = min(chain.units.shape[1], self.options.depth)
        here = Categorical(q.take(torch.arange(deep, device=drawn.device)[None]).on(None))
        # The window's unit comes first; under shared noise it won this race in the round before.
        first = chain.units[:, :deep, None]
        best = here.race(noise.chain(1, deep)).scatter(-1, first, torch.inf).topk(self._siblings, -1)
        at = (front.place * self._siblings + front.rank).expand(len(first), -1)
        units, values = (part.flatten(1).gather(1, at) for part in (best.indices, best.values))
        random = take_nodes(drawn, front.place)
        valid = torch.cat([chain.valid, (values > 0) & (random | (front.rank == 0))], 1)
        units = torch.cat([chain.units, units], 1)
        if noise.shared:  # the rule draws by position, and asks for no distribution
            return Draft.tree(units, front.parents, valid=valid)
        both = Categorical.cat([Categorical(q.on(None)), distribution_of(here, front.place, front.rank, best.indices)])
        return Draft.tree(units, front.parents, Mixed(both, torch.cat([drawn, random], 1), units), valid)

    def observe(self, state: State, step: Step) -> None:
        """The window observes a chain: the line through the last accepted node."""
        verdict, memory, k = step.verdict, state.memory, step.draft.nodes - 1
        if not step.draft.index.is_chain:
            last = verdict.path.gather(1, (verdict.length - 1).clamp(min=0)[:, None])[:, 0]
            k = memory.k
            front = self._front(k, last.device)
            line = front.line[torch.where(verdict.length > 0, last, 0)]  # [batch, k + 1]
            step = replace(
                step,
                scores=replace(step.scores, distribution=step.scores.distribution.take(line)),
                verdict=replace(verdict, drawn=take_nodes(verdict.drawn, line)),
            )
        state.memory = Memory(self.window.moved_on(memory.window, step, k), memory.k)

    def _front(self, k: int, device: torch.device) -> Front:
        return _front(k, self._siblings, min(k, self.options.depth), device)


@known
def _front(k: int, siblings: int, depth: int, device: torch.device) -> Front:
    """The front of a window of `k` units, its tables on a device."""
    parents, place, rank = list(range(-1, k - 1)), list[int](), list[int]()
    level = [-1]
    for at in range(depth):
        below = []
        for parent in level:
            for sibling in range(siblings):
                if sibling == 0 and parent == at - 1:
                    below.append(at)  # the window's own node
                else:
                    below.append(len(parents))
                    parents.append(parent)
                    place.append(at)
                    rank.append(sibling)
        level = below
    tables = ([place], [rank], _lines(parents, k))
    return Front(tuple(parents), *(on_device(table, device, torch.int64) for table in tables))


def _lines(parents: list[int], k: int) -> list[list[int]]:
    """`Front.line`, from the parents of the drafted nodes."""
    rooted = [-1, *(parent + 1 for parent in parents)]
    first = {parent: node for node, parent in reversed(list(enumerate(rooted)))}  # the window's own, where it has one
    lines = []
    for node in range(len(rooted)):
        line = [node]
        while line[0]:
            line.insert(0, rooted[line[0]])
        while line[-1] in first and len(line) <= k:
            line.append(first[line[-1]])
        lines.append([*line, *range(len(line), k + 1)])
    return lines
