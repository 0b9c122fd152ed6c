"""`united`: a head or a draft model, and copies of what was written before, in one tree under one number of nodes.

Suffix decoding, a lookup or a datastore drafts beside any head or smaller model; a path that both draft is one path.
Of all nodes those with the best scores are verified. The score of a node is the log probability of reaching it, as its
drafter says; what a retriever says is worth as much as it was right before, row by row: its chances times the number of
its units that were accepted, over the number that its chances had promised. So copies get most of the nodes while the
text repeats itself, and few elsewhere. How the two are weighed is ours: no paper is followed.
Guarantee: drafts are point masses, chosen by their units: exact under `match`, which reads no distribution.
Knobs: `nodes` (more are accepted, and each costs), `k` (how long copies are), `depth` (how deep the model drafts).
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import pad

from mmspec.core.capabilities import OwnLength, Renumbering, TargetWrapping
from mmspec.core.compile.protocols import DraftsInside, InsideDrafts
from mmspec.core.drafters.growing import renumbered
from mmspec.core.drafters.shapes.siblings import best_nodes
from mmspec.core.live import Live
from mmspec.core.noise import DraftNoise
from mmspec.core.protocols import Drafter, Target
from mmspec.core.state import State
from mmspec.core.types import Draft, Step
from mmspec.hosts.loading import header
from mmspec.registry import DrafterSpec
from mmspec.registry.options import build, option
from mmspec.registry.suggest import unknown
from mmspec_text import specs
from mmspec_text.head_specs import HEAD_DRAFTERS

MODELS = specs.PARD, specs.DRAFT_MODEL, specs.DRAFT_TREE, specs.SEQUOIA, specs.LLMCAD
FIRST = {spec.name: spec for spec in (*HEAD_DRAFTERS, *MODELS)}
BESIDE = {spec.name: spec for spec in (specs.SUFFIX, specs.PROMPT_LOOKUP, specs.REST)}
USUAL_DEPTH = 5
"""Units that a model drafts per path where neither its files nor the user say."""
KEPT = 0.9
"""The weight of a round's count one round later."""


@dataclass(frozen=True)
class UnitedOptions:
    """Options of `united`."""

    model: Any = option(None, "the head or smaller model: a folder, a hub name, or live")
    first: str | None = option(
        None, "what drafts with it: eagle, mtp, draft-tree, …; by default what its files call for"
    )
    beside: Literal["suffix", "prompt-lookup", "rest"] = option(
        "suffix", "what copies; prompt-lookup drafts on the device, in captured rounds too"
    )
    nodes: Annotated[int, Field(ge=1, le=512)] | None = option(
        None, "nodes that are verified; by default as many as the model drafts, or 2 k"
    )
    depth: Annotated[int, Field(ge=1)] | None = option(
        None, "units that the model drafts per path; by default what it was trained for"
    )
    first_options: Mapping[str, Any] = field(default_factory=dict, metadata={"help": "further options of `first`"})
    beside_options: Mapping[str, Any] = field(default_factory=dict, metadata={"help": "options of `beside`"})


@dataclass
class Trust:
    """The weight of a retriever's chances, by row."""

    right: Tensor  # `[batch]`: its units that were accepted behind accepted ones; older rounds count less
    promised: Tensor  # `[batch]`: the sum of the chances of all that might have been
    chance: Tensor  # `[batch, node]`, of the round's draft: of its nodes, given their parents; 0 at others

    @classmethod
    def begin(cls, rows: Tensor) -> "Trust":
        """Trust in a retriever that was not tried yet, for rows `[batch]`."""
        with torch.inference_mode(False):  # rounds inside and outside of inference mode write to it
            none = torch.zeros_like(rows, dtype=torch.float32)
            return cls(none, none.clone(), none[:, None][:, :0])

    def take(self, other: "Trust") -> None:
        """Take what another one counted."""
        self.right.copy_(other.right)
        self.promised.copy_(other.promised)

    @property
    def worth(self) -> Tensor:
        """`[batch]`: the logarithm of what a chance is multiplied with."""
        return ((self.right + 1) / (self.promised + 1)).clamp(max=1).log()

    def observe(self, step: Step) -> None:
        """Count a round; the draft may have been padded since it was made."""
        reached = step.verdict.emitted(step.count)
        chance = pad(self.chance, (0, step.draft.nodes - 1 - self.chance.shape[1]))
        parent = step.draft.index.parent[:, 1:].expand_as(chance)
        tried = torch.where(step.draft.valid[:, 1:] & reached.gather(1, parent), chance, 0)
        torch.add(KEPT * self.promised, tried.sum(1), out=self.promised)
        torch.add(KEPT * self.right, (reached[:, 1:] & (tried > 0)).sum(1), out=self.right)


class United:
    """The best nodes of two drafters' trees, as one tree. The first gives scores; the second is the retriever, whose
    nodes without a score are taken to be certain.

    There are at most `nodes`; None: as many as the first drafts, at least two for each unit of the longest path. The
    first's deepest path is `depth`; None: the budget. Where `agreed`, only paths are taken from the second whose first
    unit the first drafts, too. The call's memory is a list of both drafters' and of the trust in the second.
    """

    offers = frozenset({"tree"})

    def __init__(
        self, first: Drafter, second: Drafter, nodes: int | None = None, depth: int | None = None, agreed: bool = False
    ) -> None:
        self.first, self.second = first, second
        self.needs = first.needs | second.needs | {"rerank"}
        self.nodes, self.depth, self.agreed = nodes, depth, agreed

    def bind(self, target: Target) -> None:
        self.first.bind(target)
        self.second.bind(target)

    @property
    def everywhere(self) -> bool:
        """As of the first."""
        return isinstance(self.first, DraftsInside) and self.first.everywhere

    def wrap(self, target: Target) -> Target:
        """The target as the first wants it."""
        return self.first.wrap(target) if isinstance(self.first, TargetWrapping) else target

    def width(self, k: int) -> int:
        first = self.first.width(self.levels(k))
        return min(self.nodes or max(first, 2 * k), first + self.second.width(k))

    def levels(self, k: int) -> int:
        """The first's budget, where both have `k`."""
        return k if self.depth is None else min(k, self.depth)

    def start(self, state: State, inputs: Any) -> list[Any]:
        return [self.first.start(state, inputs), self.second.start(state, inputs), Trust.begin(state.emitted)]

    def propose(self, state: State, k: int, noise: DraftNoise) -> Draft:
        trust: Trust = state.memory[2]
        with own_memory(state, 0):
            first = self.first.propose(state, self.levels(k), noise)
        with own_memory(state, 1):
            second = self.second.propose(state, k, noise)
        draft, trust.chance, chosen = united(first, second, self.width(k), trust.worth, self.agreed)
        if isinstance(self.first, Renumbering):
            with own_memory(state, 0):
                self.first.renumber(state, chosen)
        return draft

    def observe(self, state: State, step: Step) -> None:
        for which, drafter in enumerate((self.first, self.second)):
            with own_memory(state, which):
                drafter.observe(state, step)
        state.memory[2].observe(step)

    def inside(self, k: int, state: State) -> "UnitedInside":
        return UnitedInside(self, k, state)

    def fits_inside(self, state: State) -> bool:
        """Not where one of them drafts on the host."""
        for which, drafter in enumerate((self.first, self.second)):
            with own_memory(state, which):
                if not isinstance(drafter, DraftsInside) or not drafter.fits_inside(state):
                    return False
        return True


class UnitedInside(InsideDrafts):
    """The drafts of both inside of captured rounds."""

    parents = None

    def __init__(self, drafter: United, k: int, state: State) -> None:
        first, second = drafter.first, drafter.second
        assert isinstance(first, DraftsInside) and isinstance(second, DraftsInside)
        with own_memory(state, 0):
            self.first = first.inside(drafter.levels(k), state)
        with own_memory(state, 1):
            self.second = second.inside(k, state)
        self.most, self.agreed, self.first.longest = drafter.width(k), drafter.agreed, k
        self.modules = (*self.first.modules, *self.second.modules)
        own = self.most, drafter.levels(k), k, self.agreed
        self.key = type(first), self.first.key, type(second), self.second.key, own

    def _each(self, state: State, drafter: Any = None) -> Iterator[tuple[InsideDrafts, Any]]:
        """Both parts, and their drafters, while the call's memory is theirs."""
        both = (None, None) if drafter is None else (drafter.first, drafter.second)
        for which, part in enumerate((self.first, self.second)):
            with own_memory(state, which):
                yield part, both[which]

    def reserve(self, state: State) -> None:
        for part, _ in self._each(state):
            part.reserve(state)
        self._trust = Trust.begin(state.emitted)

    @contextmanager
    def ready(self) -> Iterator[None]:
        with self.first.ready(), self.second.ready():
            yield

    def load(self, drafter: Any, state: State) -> None:
        for part, own in self._each(state, drafter):
            part.load(own, state)
        self._trust.take(state.memory[2])

    def unload(self, drafter: Any, state: State) -> None:
        for part, own in self._each(state, drafter):
            part.unload(own, state)
        state.memory[2].take(self._trust)

    def propose(self, live: Live, noise: DraftNoise) -> Draft:
        trust = self._trust
        first, second = self.first.propose(live, noise), self.second.propose(live, noise)
        draft, trust.chance, chosen = united(first, second, self.most, trust.worth, self.agreed, fixed=True)
        self.first.renumber(chosen)
        return draft

    def observe(self, live: Live, step: Step) -> None:
        self.first.observe(live, step)
        self.second.observe(live, step)
        self._trust.observe(step)


@contextmanager
def own_memory(state: State, which: int) -> Iterator[None]:
    """A block in which `state.memory`, a list that opens with two drafters' memories, is one of them."""
    both: list[Any] = state.memory
    state.memory = both[which]
    try:
        yield
    finally:
        both[which], state.memory = state.memory, both


def united(
    first: Draft, second: Draft, most: int, worth: Tensor, agreed: bool, fixed: bool = False
) -> tuple[Draft, Tensor, Tensor]:
    """One tree of two drafts that are not rooted, of at most `most` nodes. If `fixed`, their number depends on no data.

    `worth [batch]` is the logarithm of what the second's chances are multiplied with. Beside the draft there are the
    second's chance of each of its nodes given the node's parent, 0 at others, `[batch, node]`; and where each node
    comes from, `[batch, node]`: ids of the first's nodes, and then of the second's.
    """
    rows, n, m = len(first.units), first.units.shape[1], second.units.shape[1]
    above, behind = (draft.index.parent.clamp(min=0).expand(rows, -1) for draft in (first, second))
    mine, its = _reached(first), _reached(second)
    equal = pad(first.units[:, None] == second.units[:, :, None], (1, 0, 1, 0)) & mine[:, None] & its[:, :, None]
    equal[:, 0, 0] = True
    one = equal  # `[batch, 1 + m, 1 + n]`: whether two nodes have the same path
    for _ in range(min(first.index.deepest, second.index.deepest)):
        of_parents = one.gather(1, behind[..., None].expand_as(one)).gather(2, above[:, None].expand_as(one))
        one = equal & of_parents
    both = one.any(2)  # nodes of the second that are in the first
    new = its & ~both
    if agreed:
        begun = both & (second.index.depth == 1)
        new &= (second.index.ancestor & begun[:, None]).any(2)
    said = pad(_scores(second), (1, 0))
    chance = torch.where(its, (said - said.gather(1, behind)).exp(), 0)
    score = torch.where(its, said + second.index.depth * worth[:, None], -torch.inf)
    own = torch.where(mine, pad(_scores(first), (1, 0)), -torch.inf)
    own = torch.maximum(own, torch.where(one, score[..., None], -torch.inf).amax(1))
    scores = torch.cat([own[:, 1:], torch.where(new, score, -torch.inf)[:, 1:]], 1)
    chances = torch.cat([torch.where(one, chance[..., None], 0).amax(1)[:, 1:], (chance * new)[:, 1:]], 1)
    # Among both: the root is 0, then come the first's nodes, then the second's.
    place = torch.where(both, one.int().argmax(2), n + torch.arange(m + 1, device=worth.device))
    parents = torch.cat([above[:, 1:], place.gather(1, behind)[:, 1:]], 1) - 1
    count = min(most, n + m)
    if worth.device.type == "cpu" and not fixed:  # elsewhere counting would be a sync
        count = min(count, int((scores > -torch.inf).sum(1).max()))
    chosen = best_nodes(scores, count)
    none = scores.gather(1, chosen) == -torch.inf
    chosen = chosen.gather(1, none.long().argsort(dim=1, stable=True))  # so that padding comes last
    units, scores = torch.cat([first.units, second.units], 1).gather(1, chosen), scores.gather(1, chosen)
    deepest = max(first.index.deepest, second.index.deepest)
    valid, parents = scores > -torch.inf, renumbered(parents, chosen)
    draft = Draft.tree(units, parents, valid=valid, score=scores, deepest=deepest)
    return draft, chances.gather(1, chosen), chosen


def _reached(draft: Draft) -> Tensor:
    """The root and the nodes of a draft, not rooted, whose path is valid: `[batch, 1 + node]` bool."""
    valid = pad(draft.valid, (1, 0), value=True)
    return ~(draft.index.ancestor & ~valid[:, None]).any(2)


def _scores(draft: Draft) -> Tensor:
    return torch.zeros_like(draft.valid, dtype=torch.float32) if draft.score is None else draft.score


class UnitedWithModel(United):
    """Drafts with a head or a smaller model, and copies."""

    def __init__(self, options: UnitedOptions = UnitedOptions()) -> None:
        first, beside = first_of(options.model, options.first, specs.DRAFT_MODEL), BESIDE[options.beside]
        own = beside.load_options()
        assert own is not None
        given = {"model": options.model} if options.nodes is None else {"model": options.model, "nodes": options.nodes}
        drafter, trained = first_drafter(first, given, options.first_options)
        retriever = beside.load()(build(own, options.beside_options, beside.name))
        super().__init__(drafter, retriever, options.nodes, options.depth or trained)


def first_drafter(spec: DrafterSpec, given: Mapping[str, Any], more: Mapping[str, Any] = {}) -> tuple[Any, int]:
    """The drafter of a model, with what it declares of the options `given`, and with `more`; and its longest path."""
    declared = spec.load_options()
    assert declared is not None
    names = {option.name for option in fields(declared)}
    drafter = spec.load()(build(declared, {n: v for n, v in given.items() if n in names} | dict(more), spec.name))
    trained = drafter.own_length if isinstance(drafter, OwnLength) else None
    return drafter, trained or USUAL_DEPTH


def first_of(model: Any, name: str | None, otherwise: DrafterSpec) -> DrafterSpec:
    """The drafter for a model, by name or by the model's files; of a language model `otherwise`."""
    if name is not None:
        if name not in FIRST:
            raise ValueError(unknown("drafter of a model", name, list(FIRST)))
        return FIRST[name]
    if not isinstance(model, str):
        return otherwise
    config, keys = header(model)
    return next((spec for spec in FIRST.values() if spec.is_for(config, keys)), otherwise)
