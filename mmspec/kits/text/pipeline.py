"""`TextPipeline`: text in, text out, in the manner of diffusers, whole or piece by piece."""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from diffusers.utils import BaseOutput
from torch import Tensor
from transformers import EosTokenCriteria, RepetitionPenaltyLogitsProcessor

from mmspec.api.enable import learner_of
from mmspec.api.generation import without_forbidden_drafts
from mmspec.api.pipeline import Generators, Seed, seeds_for
from mmspec.api.stopping import Pieces, StoppingMonitor, Stream, cut, stop_strings, with_stop_strings
from mmspec.core.history_processors import Processor
from mmspec.core.learning import Learner, Learning
from mmspec.core.report import Report
from mmspec.core.state import State
from mmspec.core.trace import Trace
from mmspec.core.warp import Warp
from mmspec.kits.text.language import LanguagePipeline, Message, encoded
from mmspec.registry.numbers import integers, numbers, required, whole

Output = TypeVar("Output")


class TextStream(Iterator[str], Generic[Output]):
    """The pieces of one text; the model runs as they are asked for.

    Example:
        `for piece in pipe("def area(", stream=True): print(piece, end="")`
    """

    def __init__(self, rounds: Generator[State, None, None], pieces: Pieces, finish: Callable[[State], Output]) -> None:
        self._rounds, self._pieces, self._finish = rounds, pieces, finish
        self._state: State | None = None
        self.output: Output | None = None  # the call's; None until the last piece came

    def __next__(self) -> str:
        while self.output is None:
            with torch.no_grad():  # around each round: a caller's code in between is no business of ours
                state = next(self._rounds, None)
                if state is None:
                    assert self._state is not None, "a call has at least its prefill"
                    state, self.output = self._state, self._finish(self._state)
                self._state = state
                piece = self._pieces.more(state.output()[0], self.output is not None)
            if piece:
                return piece
        raise StopIteration

    def close(self) -> None:
        """Stop the call, which then has no output."""
        self._rounds.close()


NEVER = -1  # an id that no token has


@dataclass
class TextPipelineOutput(BaseOutput):
    """The output of a call."""

    texts: list[str]  # the continuations, without their prompts and without special tokens
    ids: list[Tensor]  # their tokens, the end-of-text token included: one tensor `[new]` per continuation
    report: Report  # counts and times


class TextPipeline(LanguagePipeline):
    """Continues prompts, or answers conversations, with a causal language model.

    Attributes:
        learner: What the drafter learnt since `learn`; None without it.
    """

    learner: Learner | None = None

    def learn(self, learning: Learning | None = None) -> Learner:
        """Let the drafter learn between calls from what it drafted in them; texts stay the same under an
        invariant rule. `use` ends it.

        Args:
            learning: The settings of the lessons; default: those of `mmspec.Learning()`.

        Raises:
            ValueError: The drafter cannot learn; or texts would depend on when it does.
        """
        learner = self.learner = learner_of(self.decoder(), learning or Learning())
        assert learner is not None
        return learner

    @torch.no_grad()
    def __call__(
        self,
        prompt: str | Sequence[str] | Sequence[Message] | Sequence[Sequence[Message]],
        max_new_tokens: int = 200,
        *,
        num_return_sequences: int = 1,
        temperature: float = 0.8,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        logits_processor: Sequence[Processor] = (),
        stop: str | Sequence[str] | None = None,
        seed: Seed = None,
        generator: Generators = None,
        k: int | None = None,
        stream: bool = False,
        streamer: Any = None,
        trace: bool = False,
        return_dict: bool = True,
    ) -> TextPipelineOutput | tuple[list[str], list[Tensor], Report] | TextStream[TextPipelineOutput]:
        """Continue a prompt, or several in one batch.

        Args:
            prompt: A text to continue, or a conversation to answer: messages `{"role": "user", "content": "…"}`, which
                need a tokenizer with a chat template. Or a list of texts, or of conversations.
            max_new_tokens: The most new tokens per prompt.
            num_return_sequences: Continuations per prompt, which follow each other; their prompt is read once.
            temperature: Higher is more varied; 0 is greedy.
            top_k: Draw from the `top_k` likeliest tokens; lower is safer, 0 keeps all.
            top_p: Draw from the likeliest tokens that have this mass together; lower is safer, 1 keeps all.
            min_p: Drop tokens less likely than this share of the likeliest one; higher is safer, 0 keeps all.
            repetition_penalty: Divides the scores of tokens that were there before, as in transformers; higher repeats
                less, 1 changes nothing.
            logits_processor: Processors of transformers, or your own, which run behind the penalty and before the
                temperature; which ones go with drafts is said in `mmspec.core.processors`, the others run without. In
                a batch the ids that they are given begin with padding: repeats of the row's first token.
            stop: Texts end at this string, or at any of several; `texts` are without it.
            seed: A seed, or one per continuation. A continuation does not depend on the method or on the batch. With
                one seed it depends on the seed and on its number in the call; with a seed of its own it equals the
                continuation of a call for this prompt alone with this seed.
            generator: A `torch.Generator`, or one per continuation, instead of `seed`.
            k: Units to draft per round; default: as in `use`.
            stream: Return an iterator over the pieces of the text, which runs the model as it is read; for one
                continuation only.
            streamer: A streamer of transformers; for one continuation only.
            trace: Note what every round did, in `report.trace`, which notebooks show; such a call is slower.
            return_dict: Whether to return the output object and not a tuple of its fields.

        Raises:
            ValueError: The prompt is empty or a number is out of its range.
        """
        integers(k=k)
        required(repetition_penalty=repetition_penalty)
        numbers(repetition_penalty=repetition_penalty)
        for name, number in (("num_return_sequences", num_return_sequences), ("max_new_tokens", max_new_tokens)):
            if whole(name, number) < 1:
                raise ValueError(f"{name} must be at least 1, got {number}")
        if not repetition_penalty > 0:
            raise ValueError(f"repetition_penalty must be above 0, got {repetition_penalty}; 1 changes nothing")
        stops = stop_strings(stop)
        given = encoded(prompt, self.tokenizer)
        inputs = {
            name: value.repeat_interleave(num_return_sequences, 0).to(self._execution_device)
            for name, value in given.items()
        }
        rows, ids = len(inputs["input_ids"]), inputs["input_ids"]
        if stream and (rows > 1 or streamer is not None):
            raise ValueError(f"stream=True takes one continuation and no streamer=; got {rows} rows")
        penalty = () if repetition_penalty == 1 else (RepetitionPenaltyLogitsProcessor(repetition_penalty),)
        warp = Warp.sampling(temperature, top_k, top_p, min_p)
        processors = (*penalty, *(logits_processor or ()), *warp.processors)  # in the order of transformers
        writing = Stream(streamer, ids)
        ends = self.model.generation_config.eos_token_id
        criteria = [EosTokenCriteria(NEVER if ends is None else ends)]  # each row ends by itself
        monitor = StoppingMonitor(with_stop_strings(criteria, list(stops) or None, self.tokenizer), rows, 0, None)
        seeds = seeds_for(rows, seed, generator, "prompt" if num_return_sequences == 1 else "continuation")
        decoder = without_forbidden_drafts(self.decoder(k), processors)
        learner = self.learner if self.learner is not None and decoder.drafter is self.learner.drafter else None
        notes = learner.notes() if learner is not None and decoder.k else None
        rounds = decoder.rounds(
            inputs,
            max_new_tokens,
            watched=stream or trace or streamer is not None or monitor.watches or notes is not None,
            seed=seeds,
            warp=Warp(processors, sample=warp.sample),
            ends=ends,
        )

        traced = Trace(lambda unit: str(self.tokenizer.decode([unit]))) if trace else None

        def watched() -> Generator[State, None, None]:
            with closing(rounds), nullcontext() if learner is None else learner.call():
                if learner is not None and notes is not None:
                    learner.turn_to(ids[0][inputs["attention_mask"][0].bool()])
                for state in rounds:
                    for observer in (notes, monitor, writing, traced):
                        if observer is not None:
                            observer.step(state)
                    yield state
            writing.end()

        def finished(state: State) -> TextPipelineOutput:
            if learner is not None and notes is not None:
                learner.keep(notes.rows(state))
                learner.learn()
            units = state.output()
            state.report.trace = traced
            texts = [cut(self.tokenizer.decode(row, skip_special_tokens=True), stops) for row in units]
            return TextPipelineOutput(texts, units, state.report)

        if stream:
            return TextStream(watched(), Pieces(self.tokenizer, stops), finished)
        *_, last = watched()
        result = finished(last)
        return result if return_dict else (result.texts, result.ids, result.report)
