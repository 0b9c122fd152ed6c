"""transformers' own candidate generators as drafters: prompt lookup, assistants, assistants with another tokenizer.

Assisted generation (Gante, 2023), and its form for different tokenizers (string-level exact match, Timor et al., arXiv
2502.05202), which decodes an assistant's text and encodes it again.
Guarantee: drafts are point masses, so that exactness does not depend on a generator's probabilities; assistants draft
greedily, and the state of torch's generator is restored. One row only, as in transformers.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import GenerationConfig
from transformers.generation.candidate_generator import (
    AssistedCandidateGenerator,
    AssistedCandidateGeneratorDifferentTokenizers,
    CandidateGenerator,
    PromptLookupCandidateGenerator,
)

from mmspec.core.noise import DraftNoise
from mmspec.core.protocols import Target
from mmspec.core.state import State
from mmspec.core.types import Draft, Step
from mmspec.hosts.loading import load_model, load_tokenizer
from mmspec.registry.options import option
from mmspec_text.specs import CANDIDATES

GeneratorFactory = Callable[[State, Any], CandidateGenerator]
"""Makes the generator of a call from its present state and its inputs."""

_COUNTS = ("num_assistant_tokens", "num_output_tokens")
"""Attributes of generators that say how many tokens they propose."""


@dataclass(frozen=True)
class CandidatesOptions:
    """Options of `candidates`."""

    kind: Literal["prompt-lookup", "assistant", "cross-tokenizer"] = option(
        "prompt-lookup", "which of transformers' generators"
    )
    model: Any = option(None, "the assistant: a shipped name, a folder, a hub name or live")
    tokenizer: Any = option(None, "cross-tokenizer: the target's tokenizer, live or a model's name")
    assistant_tokenizer: Any = option(
        None, "cross-tokenizer: the assistant's; default: the one beside a named assistant"
    )

    def __post_init__(self) -> None:
        if self.kind != "prompt-lookup" and self.model is None:
            raise ValueError(f"kind {self.kind!r} needs an assistant: model=<a smaller model>")
        if self.kind == "cross-tokenizer" and self.tokenizer is None:
            raise ValueError("kind 'cross-tokenizer' needs tokenizer=<the target's tokenizer, or its model's name>")
        if self.kind == "cross-tokenizer" and self.assistant_tokenizer is None and not isinstance(self.model, str):
            raise ValueError("kind 'cross-tokenizer' with a live assistant needs assistant_tokenizer=")


@dataclass
class CandidatesMemory:
    """The drafter's memory of one call."""

    generator: CandidateGenerator
    inputs: Any  # the inputs of the call
    asked: bool = False  # whether the generator proposed candidates in the present round
    stale: bool = False  # whether a round passed without the generator, so that its cache is not at the end of the text


class Candidates:
    """Drafts the candidates of a candidate generator of transformers.

    Example:
        ```python
        mmspec.enable(model, drafter=Candidates(assistant(small)))
        ```
    """

    needs, offers = CANDIDATES.needs, CANDIDATES.offers

    def __init__(self, make: GeneratorFactory) -> None:
        self.make = make
        self._vocab = 0

    def bind(self, target: Target) -> None:
        assert target.vocab is not None
        self._vocab = target.vocab

    def width(self, k: int) -> int:
        return k

    def start(self, state: State, inputs: Any) -> CandidatesMemory:
        if state.rows > 1:
            raise ValueError(
                f"transformers' candidate generators take one row at a time, got {state.rows}; "
                "call generate row by row, or use a drafter that takes batches (prompt-lookup, draft-model, suffix)"
            )
        generator = self.make(state, inputs)
        if generator.requires_model_outputs:
            raise ValueError(f"{type(generator).__name__} reads the target's own outputs, which it is not shown here")
        return CandidatesMemory(generator, inputs)

    def propose(self, state: State, k: int, noise: DraftNoise) -> Draft:
        memory: CandidatesMemory = state.memory
        if memory.stale:
            memory.generator, memory.stale = self.make(state, memory.inputs), False
        memory.asked = False
        text = known_text(state)
        drafted = _ask(memory.generator, text, k)[:, text.shape[1] :][:, :k].to(state.root.device)
        memory.asked = True
        return Draft.chain(drafted.clamp(min=0, max=self._vocab - 1), valid=(drafted >= 0) & (drafted < self._vocab))

    def observe(self, state: State, step: Step) -> None:
        memory: CandidatesMemory = state.memory
        memory.stale = memory.stale or not memory.asked
        if memory.asked and step.scores.logits is not None:
            count = int(step.count)
            text = state.history[:, state.host.pads[0] : state.prompt_length + state.host.emitted[0] + count]
            memory.generator.update_candidate_strategy(text, step.scores.logits, max(count - 1, 0))
        memory.asked = False


class TextCandidates(Candidates):
    """`Candidates` with a generator that options describe."""

    def __init__(self, options: CandidatesOptions = CandidatesOptions()) -> None:
        model = load_model(options.model) if isinstance(options.model, str) else options.model
        super().__init__(_factory(options, model))
        self._shares_ids = options.kind == "assistant"
        self._assistant_vocab = model.config.get_text_config().vocab_size if model is not None else 0

    def bind(self, target: Target) -> None:
        super().bind(target)
        if self._shares_ids and self._assistant_vocab < self._vocab:
            raise ValueError(
                f"the assistant has {self._assistant_vocab} token ids and the target {self._vocab}; an assistant with "
                "another tokenizer is kind='cross-tokenizer'"
            )


def prompt_lookup(max_ngram: int = 2) -> GeneratorFactory:
    """transformers' prompt lookup, which copies from the first occurrence of the longest n-gram."""
    return lambda state, inputs: PromptLookupCandidateGenerator(
        eos_token_id=state.live.ends if len(state.live.ends) else None,
        max_matching_ngram_size=max_ngram,
        max_length=_longest(state),
    )


def assistant(model: Any) -> GeneratorFactory:
    """A smaller model with the target's tokenizer."""
    return lambda state, inputs: AssistedCandidateGenerator(assistant_model=model, **_greedily(state))


def cross_tokenizer(model: Any, tokenizer: Any, assistant_tokenizer: Any) -> GeneratorFactory:
    """A smaller model with a tokenizer of its own."""
    own = {"target_tokenizer": tokenizer, "assistant_tokenizer": assistant_tokenizer}
    return lambda state, inputs: AssistedCandidateGeneratorDifferentTokenizers(
        assistant_model=model, **own, **_greedily(state)
    )


def known_text(state: State) -> Tensor:
    """The prompt without padding and the output of a call of one row: `[1, length]`."""
    return state.history[:, state.host.pads[0] : state.prompt_length + state.host.emitted[0]]


def _ask(generator: CandidateGenerator, text: Tensor, k: int) -> Tensor:
    """The text with at most `k` candidates; the number of the generator's own schedule is restored afterwards."""
    counts = {name: getattr(generator, name) for name in _COUNTS if hasattr(generator, name)}
    for name, own in counts.items():
        setattr(generator, name, k if name == "num_output_tokens" else min(int(own), k))
    try:
        with torch.no_grad(), torch.random.fork_rng([text.device] if text.is_cuda else []):
            candidates: Tensor = generator.get_candidates(text)[0]
            return candidates
    finally:
        for name, own in counts.items():
            setattr(generator, name, own)


def _longest(state: State) -> int:
    return state.prompt_length - state.host.pads[0] + state.limit


def _greedily(state: State) -> dict[str, Any]:
    """The arguments of generators with an assistant: it drafts greedily."""
    text, ends = known_text(state), state.live.ends.tolist() or None
    how = GenerationConfig(do_sample=False, max_length=_longest(state), min_length=0, eos_token_id=ends)
    return {"input_ids": text, "generation_config": how, "model_kwargs": {"attention_mask": torch.ones_like(text)}}


def _factory(options: CandidatesOptions, model: Any) -> GeneratorFactory:
    if options.kind == "prompt-lookup":
        return prompt_lookup()
    if options.kind == "assistant":
        return assistant(model)
    own = options.assistant_tokenizer if options.assistant_tokenizer is not None else options.model
    target_tokenizer, own = (load_tokenizer(t) if isinstance(t, str) else t for t in (options.tokenizer, own))
    return cross_tokenizer(model, target_tokenizer, own)
