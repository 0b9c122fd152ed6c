"""The drafter around a head that steps along paths, whatever the head computes.

A path begins with the root's state, from the last feature alone or from all of them. Features of the prompt and of
accepted units come from the target's own passes, so a path never begins with a guess.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from mmspec.core.distributions import take_nodes
from mmspec.core.drafters.growing import grown
from mmspec.core.drafters.shapes import Shape
from mmspec.core.hidden import FINAL
from mmspec.core.noise import DraftNoise
from mmspec.core.protocols import Target
from mmspec.core.state import State
from mmspec.core.types import Draft, Step
from mmspec.hosts.target import TransformersTarget
from mmspec_text.drafters.heads.captured.draft import lent
from mmspec_text.drafters.heads.captured.rows import PathDraft
from mmspec_text.drafters.heads.drafter import HeadMemory, begun, observed, of_prompt, units_of
from mmspec_text.drafters.heads.eagle.loaded import Loaded
from mmspec_text.drafters.heads.fits import refuse_ids, refuse_states
from mmspec_text.drafters.heads.head import Head
from mmspec_text.drafters.heads.options import HeadOptions, head_of
from mmspec_text.drafters.heads.pathwise.checkpoint import PathCheckpoint
from mmspec_text.drafters.heads.pathwise.head import PathHead, PrefixHead, Walk
from mmspec_text.drafters.heads.trial import report, trial_ids, try_paths


@dataclass(frozen=True)
class PathOptions(HeadOptions):
    """Options of a drafter with such a head."""


class PathDrafter:
    """Drafts with a head that steps along paths; no draft is deeper than the head's longest path.

    A method with such a head is this class with the attributes `kind` and `read`.

    Args:
        options: The head, and the form of its drafts.

    Raises:
        ValueError: No head was named, or it cannot be read.

    Attributes:
        kind: The method's name, for messages.
        read: Reads a head from a folder or the hub.
        loaded: What was read, and how the head did on the first prompt.
    """

    kind: ClassVar[str]
    read: ClassVar[Callable[[str], PathCheckpoint]]

    def __init__(self, options: PathOptions = PathOptions()) -> None:
        self.options, self.shape = options, options.build_shape()
        self.offers, self.needs = self.shape.offers, self.shape.needs | {"hidden", "discrete"}
        self.advice = options.advice
        stored = self.checkpoint = head_of(options.model, self.kind, PathCheckpoint, self.read)
        self.loaded = Loaded(stored.name, stored.layout, stored.taken, stored.shared, stored.ignored)
        self._tried: Any = None

    def wrap(self, target: Target) -> Target:
        """The target, with the state that its output layer reads.

        Raises:
            ValueError: The head is one of another target.
        """
        return refuse_states(self.checkpoint.name, self.checkpoint.architecture, target).with_hidden((FINAL,))

    def bind(self, target: Target) -> None:
        assert isinstance(target, TransformersTarget)
        vocab = refuse_ids(self.checkpoint.name, self.checkpoint.architecture, target, self.shape)
        self.network: PathHead = self.checkpoint.network(vocab)
        self._target = target

    def width(self, k: int) -> int:
        return self.shape.width(self._depth(k))

    def start(self, state: State, inputs: Any) -> "Intake":
        model = self._target.model  # which may have been moved or cast since the last call
        lent = self._target.lend()
        self.network.join(lent.embedding, lent.output, lent.device, lent.dtype)
        if self.options.probe and self._tried is not model and (ids := trial_ids(state, inputs)) is not None:
            self._try(ids)
        return begin(self.network, self.shape, state)

    @torch.no_grad()
    def propose(self, state: State, k: int, noise: DraftNoise) -> Draft:
        depth = self._depth(k)
        levels = self.shape.levels(depth)
        if levels < 1:
            return Draft.empty(state.root)
        captured = self._captured(state, k, noise)
        if captured is not None:
            return captured(state.memory.feature, state, noise)
        walk = Walk(self.network, state.memory.root(state))
        draft, _, _ = grown(self.shape, state, depth, levels, noise, walk.output(), 1, walk.grow)
        return draft

    def observe(self, state: State, step: Step) -> None:
        state.memory.observe(state, step)

    def _captured(self, state: State, k: int, noise: DraftNoise) -> PathDraft | None:
        """The compiled draft of a call whose rounds are captured; None if drafts are eager."""
        memory = state.memory
        if state.capture.round is None or k != state.budget.k or not isinstance(memory, Last) or memory.eager:
            return None
        if memory.captured is None:
            embedding = self._target.model.get_input_embeddings()
            memory.captured = lent(PathDraft, self.network, embedding, self.shape, state, self._depth(k), noise)
            memory.eager = memory.captured is None
        return memory.captured

    def _depth(self, k: int) -> int:
        return min(k, self.checkpoint.architecture.units)

    def _try(self, ids: Tensor) -> None:
        """Try the head on a piece of a prompt."""
        trial = try_paths(self.network, self._target, ids)
        self._tried, self.loaded = self._target.model, self.loaded.after(trial)
        report(trial, self.checkpoint.name)


class Intake(Protocol):
    """A call's memory of features."""

    def root(self, state: State) -> Tensor:
        """The root's state, `[batch, 1, size]`."""
        ...

    def observe(self, state: State, step: Step) -> None:
        """Take the features of the units that a round emitted."""
        ...


@dataclass
class Last:
    """The last feature alone."""

    head: PathHead
    feature: Tensor  # `[batch, 1, width]`: of the unit before the root
    # Drafts in one compiled function; None: it is not known yet, or they are drafted eagerly
    captured: PathDraft | None = None
    eager: bool = False  # whether drafts of this call cannot be captured

    @torch.inference_mode()
    def root(self, state: State) -> Tensor:
        return self.head.rooted(self.feature, state.root[:, None])

    def observe(self, state: State, step: Step) -> None:
        hidden = step.scores.hidden
        assert hidden is not None, "the target returns hidden states in every round of such a call"
        nodes = torch.nn.functional.pad(step.verdict.path.clamp(min=0), (1, 0))  # the root first
        last = nodes.gather(1, (step.count - 1).clamp(min=0)[:, None])  # the bonus unit has no feature yet
        self.feature = torch.where((step.count > 0)[:, None, None], take_nodes(hidden, last), self.feature)


@dataclass
class Whole:
    """All features, through the head's attention."""

    memory: HeadMemory  # the head's cache

    def root(self, state: State) -> Tensor:
        cache, unread = self.memory.cache, self.memory.unread
        cache.slots.synced(state.host_emitted)
        if unread is not None:
            cache.read(unread, units_of(state, unread))
            self.memory.unread = None
        return cache.states[:, :1]

    def observe(self, state: State, step: Step) -> None:
        observed(self.memory, state, step)


def begin(head: PathHead, shape: Shape, state: State) -> Intake:
    """Begin a call, after prefill.

    Raises:
        ValueError: The target gave no features of the prompt.
    """
    if isinstance(head, PrefixHead):
        rows: Head = head
        return Whole(begun(rows, shape, state))
    return Last(head, of_prompt(state).features[:, -1:])
