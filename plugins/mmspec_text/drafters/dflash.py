"""Drafts of a whole block in one pass of a trained head, from the target's own features: DFlash and DSpark.

DFlash (arXiv 2602.06036): c = norm(fc(states of some of the target's layers)) of every known unit gives the keys and
values of each of the head's layers; the rows [root, mask, …, mask] see them and one another, and each scores its
unit. So a draft is a product of distributions. DSpark (2607.05147) adds a Markov head: a term that depends on the unit
before.
A checkpoint holds `fc`, `hidden_norm`, `norm` and `layers.*`, and in its config `block_size`, `mask_token_id` and the
target's layers; embedding (scaled, where the target's own is) and output layer are the target's where it has none.
DSpark's confidence head is not read.
Guarantee: drafts carry the distribution they are drawn from, or are point masses; exact under the rules that take the
form. A wrong head is lossless too, and slow: the first call tries it on the prompt and warns (`DFlash.loaded`).
Knobs: `form` is the shape of the draft; a tree costs the head nothing more than a chain, and every node costs the
target. No draft is deeper than the head's block.
"""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from mmspec.core.noise import DraftNoise
from mmspec.core.protocols import Target
from mmspec.core.state import State
from mmspec.core.types import Draft, Step
from mmspec.hosts.devices import device_of
from mmspec.hosts.target import TransformersTarget
from mmspec_text.drafters.heads.block import drafted
from mmspec_text.drafters.heads.cache import CHUNK
from mmspec_text.drafters.heads.dflash.checkpoint import DFlashCheckpoint, read_dflash
from mmspec_text.drafters.heads.dflash.context import Context
from mmspec_text.drafters.heads.dflash.family import FIELDS
from mmspec_text.drafters.heads.dflash.network import DFlashNetwork
from mmspec_text.drafters.heads.drafter import of_prompt, with_emitted
from mmspec_text.drafters.heads.eagle.loaded import Loaded
from mmspec_text.drafters.heads.fits import refuse_ids, refuse_states
from mmspec_text.drafters.heads.options import HeadOptions, head_of
from mmspec_text.drafters.heads.rows import Rows
from mmspec_text.drafters.heads.trial import Trial, report, trial_ids, try_blocks


@dataclass(frozen=True)
class DFlashOptions(HeadOptions):
    """Options of `dflash`."""


@dataclass
class DFlashMemory:
    """What a head keeps of a call."""

    context: Context  # its cache
    unread: Rows | None  # features that it has not read yet; None after a draft


class DFlash:
    """Drafts with a head of DFlash or DSpark.

    Args:
        options: The head, and the form of its drafts.

    Raises:
        ValueError: No head was named, or it cannot be read.

    Attributes:
        loaded: What was read, and how the head did on the first prompt.
    """

    def __init__(self, options: DFlashOptions = DFlashOptions()) -> None:
        self.options, self.shape = options, options.build_shape()
        self.offers, self.needs = self.shape.offers, self.shape.needs | {"hidden", "discrete"}
        self.advice = options.advice
        self.checkpoint = head_of(options.model, "dflash", DFlashCheckpoint, read_dflash)
        self.loaded = Loaded.of(self.checkpoint)
        self._tried: Any = None
        self._trial: Trial | None = None

    def wrap(self, target: Target) -> Target:
        """The target, with the hidden states that the head reads.

        Raises:
            ValueError: The head is one of another target.
        """
        target = refuse_states(self.checkpoint.name, self.checkpoint.architecture, target)
        self._boundaries = self.checkpoint.boundaries(target.layers())
        return target.with_hidden(self._boundaries)

    def bind(self, target: Target) -> None:
        assert isinstance(target, TransformersTarget)
        model, head, name = target.model, self.checkpoint.architecture, self.checkpoint.name
        vocab = refuse_ids(name, head, target, self.shape)
        ids = head.vocab if head.own_embedding else len(model.get_input_embeddings().weight)
        if not head.own_mask and not 0 <= (head.mask_token or 0) < ids:
            raise ValueError(
                f"the head {name!r} has the mask token {head.mask_token}, and there are embeddings of {ids} ids: it is "
                "a head of another target"
            )
        self.network: DFlashNetwork = self.checkpoint.network(vocab)
        self._target = target
        if model is not self._tried:  # a decoder may be put together anew for the same model
            self._tried, self._trial = model, None

    def width(self, k: int) -> int:
        return self.shape.width(self._depth(k))

    def start(self, state: State, inputs: Any) -> DFlashMemory:
        model = self._target.model  # which may have been moved or cast since the last call
        embedding, output = model.get_input_embeddings(), model.get_output_embeddings()
        self.network.join(embedding, output, device_of(model), model.dtype)
        if self.options.probe and self._trial is None and (ids := trial_ids(state, inputs)) is not None:
            self._try(ids)
        unread = of_prompt(state)
        context = Context(self.network, state.rows, state.prompt_length + state.limit + 1, state.root.device)
        context.slots.begun = unread.count.tolist()
        return DFlashMemory(context, unread)

    def propose(self, state: State, k: int, noise: DraftNoise) -> Draft:
        depth = self._depth(k)
        if self.shape.levels(depth) < 1:
            return Draft.empty(state.root)
        context = state.memory.context
        context.slots.synced(state.host_emitted)
        self._read(state.memory)
        return drafted(context.block(state.root), self.shape, state, depth, noise)

    def observe(self, state: State, step: Step) -> None:
        memory: DFlashMemory = state.memory
        memory.unread = with_emitted(memory.unread, step)
        if memory.unread.features.shape[1] >= CHUNK:  # many rounds without a draft
            self._read(memory)

    def _depth(self, k: int) -> int:
        return min(k, self.checkpoint.architecture.units)

    def _read(self, memory: DFlashMemory) -> None:
        if memory.unread is not None:
            memory.context.append(memory.unread)
            memory.unread = None

    def _try(self, ids: Tensor) -> None:
        """Try the head on a piece of a prompt."""
        layout = self.checkpoint.layout
        self._trial = try_blocks(self.network, self._target, self._boundaries, layout.convention, ids)
        self.loaded = self.loaded.after(self._trial)
        field = FIELDS[layout.convention]
        report(self._trial, self.checkpoint.name, layout.convention, self.checkpoint.layer_ids, field)
