"""Drafts by masks inside the target's own pass, a gated LoRA and a sampler head: Apple's multi-token prediction.

Samragh et al., "Your LLM Knows the Future", arXiv 2507.11851; from the paper: there is no official code. Behind every
node of a pass hang k masks, at the positions that follow it (the paper's quadratic decoding), so that wherever the pass
stops, the next draft is there. A LoRA acts on masks alone; nodes have the scores that they have without it. The sampler
turns a mask's state and the unit before it into a distribution, so that a draft is a Markov chain.
Read into the paper: the sampler's input is [embedding, state], and the state is the one that the output layer reads.
A checkpoint is an adapter of PEFT with mask embeddings and a sampler (`heads/apple/checkpoint.py`).
Guarantee: drafts carry the distribution they are drawn from, or are point masses; exact under the rules that take the
form. A LoRA over layers that see units in another order (routed experts) is refused.
Knobs: `nodes` and `width` as in every tree; a node costs the target 1 + (number of masks) nodes.
"""

from dataclasses import dataclass, field
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from mmspec.core.noise import DraftNoise
from mmspec.core.protocols import Target
from mmspec.core.state import State
from mmspec.core.types import Draft, Step
from mmspec.hosts.devices import device_of
from mmspec.hosts.target import TransformersTarget
from mmspec.kits.text.tree_form import TreeForm
from mmspec_text.drafters.heads.apple.checkpoint import AppleCheckpoint, GatedLora, Sampler, read_apple
from mmspec_text.drafters.heads.block import Block, drafted
from mmspec_text.drafters.heads.probes import ProbedTarget, behind_root


@dataclass(frozen=True)
class AppleMTPOptions(TreeForm):
    """Options of `apple-mtp`."""

    width: Annotated[int, Field(ge=1, le=64)] = field(
        default=4, metadata={"help": "rerank: nodes expanded per level, and children of each; beam: nodes per level"}
    )
    nodes: Annotated[int, Field(ge=1, le=512)] = field(
        default=8, metadata={"help": "rerank: nodes that are verified, each of them with all masks"}
    )
    model: Any = field(default=None, metadata={"help": "masks, LoRA and sampler: a folder or a hub name"})


@dataclass
class AppleMTPMemory:
    """What the drafter keeps of a call."""

    # `[batch, mask, hidden]`: states of the masks behind the last accepted unit; None before the first pass
    states: Tensor | None = None


class AppleMTP:
    """Drafts what the sampler makes of the masks of the last pass.

    Args:
        options: Masks, LoRA and sampler, and the form of drafts.

    Raises:
        ValueError: Nothing was named, or it cannot be read.
    """

    def __init__(self, options: AppleMTPOptions = AppleMTPOptions()) -> None:
        if options.model is None:
            raise ValueError("apple-mtp needs masks: drafter=<folder or hub name>, or the option model=")
        self.options, self.shape = options, options.build_shape()
        self.offers, self.needs = self.shape.offers, self.shape.needs | {"discrete", "hidden", "tree"}
        self.advice = options.advice
        read = read_apple(options.model) if isinstance(options.model, str) else options.model
        if not isinstance(read, AppleCheckpoint):
            raise TypeError(f"masks, LoRA and sampler are a folder or a hub name, not {type(read).__name__}")
        self.checkpoint: AppleCheckpoint = read

    def wrap(self, target: Target) -> Target:
        """The target, with masks in its passes.

        Raises:
            ValueError: The masks or the LoRA are those of another target.
        """
        if not isinstance(target, TransformersTarget):
            raise ValueError(f"masks are for a model of transformers, and not for {type(target).__name__}")
        own, width = self.checkpoint.masks.shape[1], target.model.get_input_embeddings().weight.shape[-1]
        if own != width or own != target.hidden_size:
            raise ValueError(
                f"the masks of {self.checkpoint.name!r} have {own} numbers, the target's embeddings {width} and its "
                f"states {target.hidden_size}: they are those of another target"
            )
        self._lora: GatedLora = self.checkpoint.lora(target.model)
        return ProbedTarget(target, self.checkpoint.masks, self._lora, states=True)

    def bind(self, target: Target) -> None:
        assert isinstance(target, ProbedTarget) and target.vocab is not None
        if self.shape.widest > target.vocab:
            raise ValueError(f"{self.shape} wants {self.shape.widest} siblings, and the target has {target.vocab} ids")
        self.sampler: Sampler = self.checkpoint.head(target.vocab)
        self._target = target

    def width(self, k: int) -> int:
        return self.shape.width(self._depth(k))

    def start(self, state: State, inputs: Any) -> AppleMTPMemory:
        model = self._target.model  # which may have been moved or cast since the last call
        embedding, output = model.get_input_embeddings(), model.get_output_embeddings()
        self.sampler.join(embedding, output, device_of(model), model.dtype)
        self._lora.to(device_of(model), model.dtype)
        return AppleMTPMemory()

    @torch.no_grad()
    def propose(self, state: State, k: int, noise: DraftNoise) -> Draft:
        states, depth = state.memory.states, self._depth(k)
        if states is None or self.shape.levels(depth) < 1:
            return Draft.empty(state.root)
        return drafted(Block(self.sampler, states, self.sampler), self.shape, state, depth, noise)

    def observe(self, state: State, step: Step) -> None:
        state.memory.states = behind_root(step)

    @property
    def own_length(self) -> int:
        """As many units as there are masks."""
        return len(self.checkpoint.masks)

    def _depth(self, k: int) -> int:
        return min(k, self.own_length)
