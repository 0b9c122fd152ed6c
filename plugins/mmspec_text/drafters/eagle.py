"""Drafts from the target's own features with a trained head: EAGLE, EAGLE-2, EAGLE-3 and 3.1; LANTERN's for pictures.

Li et al., arXiv 2401.15077 (EAGLE), 2406.16858 (EAGLE-2: the dynamic tree), 2503.01840 (EAGLE-3), 2605.09992 (3.1). A
head is one decoder layer that reads the target's hidden states and the embedding of the next token; behind the known
text it reads its own state. After every verification it reads the accepted tokens again, with their true features.
A head without an embedding reads the target's table as it is stored, also where the target scales embeddings (Gemma).
Guarantee: drafts carry the distribution they are drawn from, or are point masses; exact under the rules that take the
form. A wrong head is lossless too, and slow: the first call tries it on the prompt and warns (`Eagle.loaded`).
Knobs: `form` is the shape of the draft; a larger `width` and more `nodes` find more, and every node costs. In texts
longer than a head's training texts, `window` keeps its attention to the latest tokens, and to `sinks` first ones.
"""

from dataclasses import dataclass, field
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from mmspec.core.hidden import Lends
from mmspec.core.noise import DraftNoise
from mmspec.core.protocols import Target
from mmspec.core.state import State
from mmspec.core.types import Draft, Step
from mmspec.hosts.target import TransformersTarget
from mmspec_text.drafters.heads.drafter import HeadMemory, begun, observed, proposed
from mmspec_text.drafters.heads.eagle.checkpoint import Checkpoint, read_checkpoint
from mmspec_text.drafters.heads.eagle.features import Features, features_of
from mmspec_text.drafters.heads.eagle.loaded import Loaded
from mmspec_text.drafters.heads.eagle.network import EagleNetwork
from mmspec_text.drafters.heads.fits import lending, refuse_ids
from mmspec_text.drafters.heads.options import HeadOptions, head_of
from mmspec_text.drafters.heads.trial import Trial, report, trial_ids, try_rows
from mmspec_text.training.lessons import EagleLesson


@dataclass(frozen=True)
class EagleOptions(HeadOptions):
    """Options of `eagle`."""

    window: Annotated[int, Field(ge=1)] | None = field(
        default=None, metadata={"help": "latest tokens that the head attends to; None: what its config says, or all"}
    )
    sinks: Annotated[int, Field(ge=0)] = field(
        default=0, metadata={"help": "first tokens that it attends to beside the window"}
    )


class Eagle:
    """Drafts with a head of the EAGLE family.

    Args:
        options: The head, and the form of its drafts.

    Raises:
        ValueError: No head was named, or it cannot be read.

    Attributes:
        loaded: What was read, and how the head did on the first prompt.
    """

    def __init__(self, options: EagleOptions = EagleOptions()) -> None:
        self.options, self.shape = options, options.build_shape()
        self.offers, self.needs = self.shape.offers, self.shape.needs | {"hidden", "discrete"}
        self.advice = options.advice
        read = head_of(options.model, "eagle", Checkpoint, read_checkpoint)
        if options.sinks and options.window is None and read.architecture.window is None:
            raise ValueError("sinks are attended to beside a window; give window=, too")
        self.checkpoint = read
        self.loaded = Loaded.of(read)
        self._tried: Any = None
        self._trial: Trial | None = None

    def wrap(self, target: Target) -> Target:
        """The target, with the hidden states that the head reads.

        Raises:
            ValueError: The head is one of another target.
        """
        name, architecture = self.checkpoint.name, self.checkpoint.architecture
        lender = lending(name, architecture, target)
        if architecture.grid and lender.lend().rotary is None:
            raise ValueError(f"the head {name!r} drafts codes on a grid, and {type(target).__name__} has none")
        self._features: Features = features_of(self.checkpoint, lender.layers())
        return lender.with_hidden(self._features.boundaries)

    def bind(self, target: Target) -> None:
        assert isinstance(target, Lends)
        model = target.model
        vocab = refuse_ids(self.checkpoint.name, self.checkpoint.architecture, target, self.shape)
        self.network: EagleNetwork = self.checkpoint.network(vocab)
        if self.options.window is not None:
            self.network.window = self.options.window
        self.network.sinks = self.options.sinks
        self._target, self._width = target, target.hidden_size
        if model is not self._tried:  # a decoder may be put together anew for the same model
            self._tried, self._trial = model, None
            self._convention = next(iter(self._features.choices))
        if self._trial is not None and self._trial.second:
            self.network.feeds_normed = self._trial.feeds_normed

    def width(self, k: int) -> int:
        return self.shape.width(k)

    def start(self, state: State, inputs: Any) -> HeadMemory:
        lent, architecture = self._target.lend(), self.checkpoint.architecture
        if architecture.grid and lent.rotary is not None:
            self.network.stand_on(lent.rotary(architecture.head_dim))
        self.network.join(lent.embedding, lent.output, lent.device, lent.dtype)
        if self.options.probe and self._trial is None and (ids := trial_ids(state, inputs)) is not None:
            self._try(ids)
        return begun(self.network, self.shape, state, self.columns, lent.before, architecture.width)

    def propose(self, state: State, k: int, noise: DraftNoise) -> Draft:
        return proposed(state.memory, self.shape, state, k, noise)

    def observe(self, state: State, step: Step) -> None:
        observed(state.memory, state, step, self.columns)

    def lesson(self, loss: str, depth: int) -> EagleLesson:
        """What the head learns between calls; arguments and errors as in `Learns`."""
        return EagleLesson(self.network, self._target, lambda: self._features.choices[self._convention], loss, depth)

    @property
    def columns(self) -> slice:
        """Which of the target's states the head reads."""
        return self._features.columns(self._convention, self._width)

    def _try(self, ids: Tensor) -> None:
        """Try the head on a piece of a prompt."""
        assert isinstance(self._target, TransformersTarget), "prompts of pictures hold no units"
        with torch.inference_mode():
            self._trial = try_rows(self.network, self._target, self._features, ids)
        guess, self._convention = self._convention, self._trial.chosen
        self.loaded = self.loaded.after(self._trial)
        report(self._trial, self.checkpoint.name, guess, self.checkpoint.layer_ids, "eagle_aux_hidden_state_layer_ids")
