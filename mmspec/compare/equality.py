"""Our ids against the ids of unmodified transformers: token by token, up to the first near-tie of a row.

Float32 sums depend on their order, so that two passes over the same tokens differ by a rounding error. A decision whose
best two candidates are closer than that may fall either way: it is a near-tie, which is printed, and the rest of its
row is not compared. Any other difference is a wrong token.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

NEAR_TIE = 1e-4  # largest margin of a near-tie: of scores in greedy decoding, of log(p / E) in sampling


@dataclass(frozen=True)
class Stock:
    """A call of unmodified transformers."""

    ids: Tensor  # `[batch, prompt + new]`, padded as transformers pads
    state: Tensor  # state of torch's generator after the call
    scores: tuple[Tensor, ...]  # processed scores of every step, `[batch, vocab]` each
    before: Tensor  # state of torch's generator when the call began
    seed: int | None  # the seed of the generator; None if the call continued from an earlier one
    do_sample: bool  # whether tokens were drawn
    ends: tuple[int, ...] = ()  # ids that end a row


@dataclass(frozen=True)
class NearTie:
    """A decision that rounding may change."""

    row: int  # the row of the batch
    position: int  # the new token, from 0
    margin: float  # the distance of the other token from the best one

    def __str__(self) -> str:
        return f"near-tie: row {self.row}, new token {self.position}, margin {self.margin:.2e}"


def stock(model: Any, inputs: Mapping[str, Tensor], seed: int | None, **generate_kwargs: Any) -> Stock:
    """Run unmodified transformers. Without a seed for `torch.manual_seed` the generator goes on as it is."""
    assert "generate" not in model.__dict__, "this model's generate is replaced; disable() first"
    if seed is not None:
        torch.manual_seed(seed)
    before = torch.get_rng_state()
    out = model.generate(**inputs, **generate_kwargs, return_dict_in_generate=True, output_scores=True)
    ends = generate_kwargs.get("eos_token_id", model.generation_config.eos_token_id)
    listed = () if ends is None else (ends,) if isinstance(ends, int) else tuple(ends)
    sampled = bool(generate_kwargs.get("do_sample", model.generation_config.do_sample))
    return Stock(out.sequences, torch.get_rng_state(), out.scores, before, seed, sampled, listed)


def assert_same(ours_ids: Tensor, run: Stock, ours_state: Tensor | None = None) -> list[NearTie]:
    """Assert that our ids equal transformers', row by row up to the row's end or its first near-tie; returns the
    near-ties, which are printed too.

    Ours are `[batch, prompt + new]`; `run` is the same call by transformers. The state of torch's generator after our
    call is compared if no row has a near-tie. The error has row, position, both tokens and their margin.
    """
    prompt = run.ids.shape[1] - len(run.scores)
    assert len(ours_ids) == len(run.ids), f"{len(ours_ids)} rows instead of {len(run.ids)}"
    assert torch.equal(ours_ids[:, :prompt], run.ids[:, :prompt]), "the prompt changed"
    ties = []
    for row in range(len(run.ids)):
        ours, theirs = (_new_tokens(ids[row, prompt:], run.ends) for ids in (ours_ids, run.ids))
        tie = _first_difference(row, ours, theirs, run)
        if tie is not None:
            print(f"{tie} (seed {run.seed})")
            ties.append(tie)
    if not ties:
        assert ours_ids.shape == run.ids.shape and torch.equal(ours_ids, run.ids), "the padding differs"
        assert ours_state is None or torch.equal(ours_state, run.state), (
            f"seed {run.seed}: the tokens are equal, and torch's generator is left in another state"
        )
    return ties


def _first_difference(row: int, ours: Sequence[int], theirs: Sequence[int], run: Stock) -> NearTie | None:
    for position in range(max(len(ours), len(theirs))):
        mine = ours[position] if position < len(ours) else None
        right = theirs[position] if position < len(theirs) else None
        if mine == right:
            continue
        margin = float("inf")
        if mine is not None and right is not None:
            chances = _chances(run, row, position)
            margin = float(chances.max() - chances[mine])
        assert margin < NEAR_TIE, (
            f"seed {run.seed}, row {row}, new token {position}: got {mine} instead of {right}, margin {margin:.3g}"
        )
        return NearTie(row, position, margin)
    return None


def _chances(run: Stock, row: int, position: int) -> Tensor:
    """The numbers of the argmax: scores, or log(p / E) with the block E of Exp(1) that multinomial drew then."""
    scores = run.scores[position]
    if not run.do_sample:
        return scores[row]
    generator = torch.Generator()
    generator.set_state(run.before)
    for _ in range(position + 1):
        block = torch.empty(scores.shape).exponential_(1, generator=generator)
    return torch.log_softmax(scores[row], -1) - block[row].log()


def _new_tokens(ids: Tensor, ends: Sequence[int]) -> list[int]:
    """A row's tokens up to its end, the end itself included."""
    tokens: list[int] = ids.tolist()
    last = next((i for i, token in enumerate(tokens) if token in ends), len(tokens) - 1)
    return tokens[: last + 1]
