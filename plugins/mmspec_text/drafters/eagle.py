"""Drafts from the target's own features with a trained head: EAGLE, EAGLE-2, EAGLE-3 and 3.1; LANTERN's for pictures.

Li et al., arXiv 2401.15077 (EAGLE), 2406.16858 (EAGLE-2: the dynamic tree), 2503.01840 (EAGLE-3), 2605.09992 (3.1);
Gui et al., arXiv 2408.15562 (FSPAD: heads of EAGLE-1 that sample features by the next token, and predict the next
feature beside the state that is scored). A head is one decoder layer that reads the target's hidden states and the
embedding of the next token; behind the known text it reads its own state. After every verification it reads the
accepted tokens again, with their true features.
A head without an embedding reads the target's table as it is stored, also where the target scales embeddings (Gemma).
Guarantee: drafts carry the distribution they are drawn from, or are point masses; exact under the rules that take the
form. A wrong head is lossless too, and slow: the first call tries it on the prompt and warns (`Eagle.loaded`).
Knobs: `form` is the shape of the draft; a larger `width` and more `nodes` find more, and every node costs. `published`
is the tree of EAGLE-3's released code: ten nodes expanded per level, 59 verified, eight levels unless `k` says. In
texts longer than a head's training texts, `window` keeps its attention to the latest tokens, and to `sinks` first ones.
`keep` and `corpus` cut the output layer to the ids that are frequent (VocabTrim, 2506.22694), where it scores many.
"""

from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from pydantic import Field

from mmspec.core.drafters.shapes import Rerank, Shape
from mmspec.core.hidden import FINAL, Lends
from mmspec.core.protocols import Target
from mmspec.core.state import State
from mmspec.registry.options import option
from mmspec_text.drafters.heads.cache import HeadCache
from mmspec_text.drafters.heads.drafter import HeadDrafter, HeadOptions
from mmspec_text.drafters.heads.eagle.checkpoint import Checkpoint, read_checkpoint
from mmspec_text.drafters.heads.eagle.family import DEEPSPEC, IDS, LAYER_IDS
from mmspec_text.drafters.heads.features import Features, features_of
from mmspec_text.drafters.heads.inside import RowsInside
from mmspec_text.drafters.heads.memory import begun
from mmspec_text.drafters.heads.stored import Convention
from mmspec_text.drafters.heads.vocabulary import TrimOptions
from mmspec_text.training.lessons import EagleLesson

PUBLISHED, LEVELS = Rerank(10, 10, 59), 8
"""The released code's tree, and its levels: its `total_token` 60 counts the root, its `depth` 7 not the first level."""
DEFAULTS = 3
"""Features that the usual boundaries 2, L // 2 and L - 3 are for."""


@dataclass(frozen=True)
class EagleOptions(HeadOptions, TrimOptions):
    """Options of `eagle`."""

    form: Literal["chain", "rerank", "greedy", "heap", "branching", "beam", "published"] = option(  # type: ignore[assignment]
        "rerank", "which nodes to draft; rerank, greedy, published: rules match and relaxed, the others: any"
    )
    window: Annotated[int, Field(ge=1)] | None = option(
        None, "latest tokens that the head attends to; None: what its config says, or all"
    )
    sinks: Annotated[int, Field(ge=0)] = option(0, "first tokens that it attends to beside the window")

    def build_shape(self) -> Shape:
        return replace(PUBLISHED, spread=self.spread) if self.form == "published" else super().build_shape()


class FamilyDrafter(HeadDrafter):
    """A drafter with a head of the EAGLE family, however it drafts."""

    stored, named_by, lenders = Checkpoint, IDS, Lends
    cached: type[HeadCache] = HeadCache  # the class of its caches

    def __init__(self, options: HeadOptions) -> None:
        super().__init__(options)
        window, self._sinks = (options.window, options.sinks) if isinstance(options, EagleOptions) else (None, 0)
        self._window = self.checkpoint.architecture.window if window is None else window
        if self._sinks and self._window is None:
            raise ValueError("sinks are attended to beside a window; give window=, too")

    @property
    def own_length(self) -> int | None:
        return LEVELS if self.options.form == "published" else super().own_length

    def wrap(self, target: Target) -> Target:
        wrapped, name = super().wrap(target), self.checkpoint.name
        if self.checkpoint.architecture.grid and isinstance(target, Lends) and target.lend().rotary is None:
            raise ValueError(f"the head {name!r} drafts codes on a grid, and {type(target).__name__} has none")
        return wrapped

    def bind(self, target: Target) -> None:
        super().bind(target)
        self.network.window, self.network.sinks = self._window, self._sinks
        if self._window != self.checkpoint.architecture.window:
            self.network.wide = frozenset()
        if self._trial is not None and self._trial.second:
            self.network.feeds_normed = self._trial.feeds_normed

    def start(self, state: State, inputs: Any) -> Any:
        lent, architecture = self._target.lend(), self.checkpoint.architecture
        if architecture.grid and lent.rotary is not None:
            self.network.stand_on(lent.rotary(architecture.head_dim))
        self.join(state, inputs)
        fed = self.shape.fed(state.budget.k)
        return begun(self.network, state, fed, self.columns, lent.before, architecture.width, self.cached)

    @property
    def columns(self) -> slice:
        """The target's states that the head reads."""
        return self._features.columns(self._convention, self._target.hidden_size)

    @property
    def _convention(self) -> Convention:
        return next(iter(self._features.choices)) if self._trial is None else self._trial.chosen

    def _features_of(self, target: Lends) -> Features:
        return eagle_features(self.checkpoint, target.layers())


def eagle_features(head: Checkpoint, layers: int) -> Features:
    """The features that a head reads of a target of so many layers; errors as in `features_of`."""
    a, usual = head.architecture, (2, layers // 2, layers - 3)
    entry = LAYER_IDS if head.layout is DEEPSPEC else IDS
    if not a.projected:
        return Features({head.layout.convention: (FINAL,)})
    if not head.layer_ids:
        return features_of(head, layers, entry, ("boundary",), usual if a.features == DEFAULTS and layers > 2 else ())
    order: tuple[Convention, ...] = ("boundary", "output")
    return features_of(head, layers, entry, order if head.layout.convention == "boundary" else order[::-1])


class Eagle(FamilyDrafter):
    """Drafts with a head of the EAGLE family, level by level."""

    kind, read = "eagle", staticmethod(read_checkpoint)

    def __init__(self, options: EagleOptions = EagleOptions()) -> None:
        super().__init__(options)

    def inside(self, k: int, state: State) -> RowsInside:
        return RowsInside(self.network, self.shape, k, state)

    def lesson(self, loss: str, depth: int) -> EagleLesson:
        """The head's lesson between calls; arguments and errors as in `Learns`."""
        if self.network.trimmed is not None:
            raise ValueError("a head learns with all rows of its output layer: leave out keep=")
        return EagleLesson(self.network, self._target, lambda: self._features.choices[self._convention], loss, depth)
