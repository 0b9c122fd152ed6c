"""Drafts by trained prompt tokens inside the target's own pass: parallel prompt decoding.

Chen et al., arXiv 2405.18628. A few embeddings are trained, and nothing else: prompt token i, behind a unit, scores the
unit i + 2 places behind it. A pass carries them behind each of its nodes, so that wherever it stops, the next draft is
there; there is no draft model, and no pass of one. A draft is a product of the prompt tokens' distributions.
A checkpoint is an adapter of PEFT: `prompt_embeddings`, and `num_special_tokens` in its config.
Guarantee: drafts carry the distribution they are drawn from, or are point masses; exact under the rules that take the
form. The scores of nodes do not depend on prompt tokens, which no node sees.
Difference from the published code: every node carries all prompt tokens (published: trees chosen by measured
acceptance, where unlikely nodes carry fewer), and the first round of a call has no draft.
Knobs: `nodes` and `width` as in every tree; a node costs the target 1 + (number of prompt tokens) nodes.
"""

from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import Field
from torch import Tensor

from mmspec.core.noise import DraftNoise
from mmspec.core.protocols import Target
from mmspec.core.state import State
from mmspec.core.types import Draft, Step
from mmspec.hosts.target import TransformersTarget
from mmspec_text.drafters.heads.block import Block, drafted
from mmspec_text.drafters.heads.ppd.checkpoint import Prompts, read_prompts
from mmspec_text.drafters.heads.probes import ProbedTarget, behind_root
from mmspec_text.drafters.tree_form import TreeForm


@dataclass(frozen=True)
class PPDOptions(TreeForm):
    """Options of `ppd`."""

    width: Annotated[int, Field(ge=1, le=64)] = field(
        default=4, metadata={"help": "rerank: nodes expanded per level, and children of each; beam: nodes per level"}
    )
    nodes: Annotated[int, Field(ge=1, le=512)] = field(
        default=8, metadata={"help": "rerank: nodes that are verified, each of them with all prompt tokens"}
    )
    model: Any = field(default=None, metadata={"help": "the prompt tokens: a folder or a hub name"})


@dataclass
class PPDMemory:
    """What the drafter keeps of a call."""

    # `[batch, prompt token, vocab]`: logits of the units behind the root; None before the first pass
    scores: Tensor | None = None


class PPD:
    """Drafts what prompt tokens of the last pass scored.

    Args:
        options: The prompt tokens, and the form of drafts.

    Raises:
        ValueError: No prompt tokens were named, or they cannot be read.
    """

    example = "mmspec_text.head_example:ppd"

    def __init__(self, options: PPDOptions = PPDOptions()) -> None:
        if options.model is None:
            raise ValueError("ppd needs prompt tokens: drafter=<folder or hub name>, or the option model=")
        self.options, self.shape = options, options.build_shape()
        self.offers, self.needs = self.shape.offers, self.shape.needs | {"discrete", "tree"}
        self.advice = options.advice
        read = read_prompts(options.model) if isinstance(options.model, str) else options.model
        if not isinstance(read, Prompts):
            raise TypeError(f"the prompt tokens are a folder or a hub name, not {type(read).__name__}")
        self.prompts: Prompts = read

    def wrap(self, target: Target) -> Target:
        """The target, with prompt tokens in its passes.

        Raises:
            ValueError: The prompt tokens are those of another target.
        """
        if not isinstance(target, TransformersTarget):
            raise ValueError(f"prompt tokens are for a model of transformers, and not for {type(target).__name__}")
        own, width = self.prompts.embeddings.shape[1], target.model.get_input_embeddings().weight.shape[-1]
        if own != width:
            raise ValueError(
                f"the prompt tokens {self.prompts.name!r} have {own} numbers, and the target's embeddings {width}: "
                "they are those of another target"
            )
        return ProbedTarget(target, self.prompts.embeddings)

    def bind(self, target: Target) -> None:
        assert target.vocab is not None
        if self.shape.widest > target.vocab:
            raise ValueError(f"{self.shape} wants {self.shape.widest} siblings, and the target has {target.vocab} ids")

    def width(self, k: int) -> int:
        return self.shape.width(self._depth(k))

    def start(self, state: State, inputs: Any) -> PPDMemory:
        return PPDMemory()

    def propose(self, state: State, k: int, noise: DraftNoise) -> Draft:
        scores, depth = state.memory.scores, self._depth(k)
        if scores is None or self.shape.levels(depth) < 1:
            return Draft.empty(state.root)
        return drafted(Block(Scored(), scores), self.shape, state, depth, noise)

    def observe(self, state: State, step: Step) -> None:
        state.memory.scores = behind_root(step)

    def _depth(self, k: int) -> int:
        return min(k, len(self.prompts.embeddings))


class Scored:
    """The scores of prompt tokens are logits over the target's ids already. It is a `Scorer`."""

    def scored(self, states: Tensor) -> Tensor:
        return states

    def over_target(self, scored: Tensor) -> Tensor:
        return scored
