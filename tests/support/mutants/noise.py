"""Bugs of noise: it is shared where it must be fresh, or fresh where it must be shared."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mmspec.core import philox as core
from mmspec.core.drafters.jacobi import Jacobi
from mmspec.core.noise import DraftNoise, Noise, Round, Substream
from mmspec.core.philox import PhiloxNoise, PhiloxSource
from mmspec.core.rules import Block, Rejection
from mmspec.core.types import Draft, Scores, Verdict
from tests.support.mutants.mutant import SCD, Mutant, both, replacing


@dataclass(frozen=True)
class _ByPosition:
    """A source without fresh noise: node i of a round has the numbers of position emitted + i."""

    key: Tensor

    def fresh(self, emitted: Tensor, first: int, count: int) -> PhiloxNoise:
        address = emitted[:, None] + torch.arange(first, first + count)
        return PhiloxNoise(self.key, address, torch.ones_like(emitted)[:, None])


def _keyed_by_position(rule: type) -> Callable[[], Any]:
    def worse(round: Round) -> Round:
        return replace(round, source=_ByPosition(round.source.key))  # type: ignore[attr-defined, arg-type]

    def draft_noise(original: Callable) -> Callable:
        return lambda self, round: original(self, worse(round))

    def accept(original: Callable) -> Callable:
        return lambda self, draft, scores, round: original(self, draft, scores, worse(round))

    return both(replacing(rule, "draft_noise", draft_noise), replacing(rule, "accept", accept))


@dataclass(frozen=True)
class _Borrowed:
    """The target's noise as draft noise, under a rule that must not share it."""

    round: Round
    shared: bool = False

    def level(self, depth: int, first: int, count: int) -> Noise:
        return DraftNoise(self.round, shared=True).level(depth, first, count)


@dataclass(frozen=True)
class _OneStream:
    """Noise by position for draws and residuals; only the coins are fresh."""

    position: Noise
    fresh: Noise

    def substream(self, substream: Substream) -> Noise:
        return self.fresh.substream(substream) if substream is Substream.COIN else self.position

    def where(self, mask: Tensor, substream: Substream) -> Noise:
        return self.position

    def at(self, index: Tensor) -> Any:
        return replace(self, position=self.position.at(index), fresh=self.fresh.at(index))

    def exponential(self, size: int) -> Tensor:
        return self.position.exponential(size)


def _shared_accept(original: Callable) -> Callable:
    def accept(self: Any, draft: Draft, scores: Scores, round: Round) -> Verdict:
        class Shared(Round):
            def fresh(self, count: int) -> Any:
                position = round.source.by_position(round.emitted, round.host_emitted, count - 1)
                return _OneStream(position, round.fresh(count))

        return original(self, draft, scores, Shared(round.source, round.emitted, round.host_emitted))

    return accept


def _once_per_call(original: Callable) -> Callable:
    def level(self: DraftNoise, depth: int, first: int, count: int) -> Noise:
        if self.shared:
            return original(self, depth, first, count)
        return self.round.source.fresh(torch.zeros_like(self.round.emitted), first, count).substream(Substream.DRAFT)

    return level


class _OfPositions(DraftNoise):
    def fresh(self, first: int, count: int) -> Noise:
        return self.round.source.by_position(self.round.emitted, self.round.host_emitted, count - 1)


def _redrawn_by_position(original: Callable) -> Callable:
    return lambda self, live, last, k, noise: original(self, live, last, k, _OfPositions(noise.round, noise.shared))


def _one_row_at_first(original: Callable) -> Callable:
    def by_position(self: PhiloxSource, emitted: Tensor, host_emitted: Any, deepest: int) -> PhiloxNoise:
        noise = original(self, emitted, host_emitted, deepest)
        noise = noise.noise if isinstance(noise, core.BufferedNoise) else noise  # a buffer has other addresses
        return replace(noise, address=(noise.address - 2).clamp(min=0))

    return by_position


def _by_index(original: Callable) -> Callable:
    return lambda self, tree: self.source.by_position(self.emitted, self.host_emitted, tree.nodes - 1)


def _by_place(original: Callable) -> Any:
    def seeded(seed: Any, rows: int, device: Any = "cpu") -> PhiloxSource:
        seeds = [seed] * rows if isinstance(seed, int) else seed
        return original([s + row for row, s in enumerate(seeds)], rows, device)

    return staticmethod(seeded)


MUTANTS = (
    Mutant(
        "noise-by-position-under-block",
        "coins and drafts of `block` are addressed by position, so that the numbers of a rejected round are used again",
        "block verification (arXiv 2403.10444) with one stream per request and position; measured χ²/df 9.6",
        _keyed_by_position(Block),
    ),
    Mutant(
        "noise-by-position-under-coupled-redraws",
        "a Jacobi window under rejection whose coins and residuals are addressed by position",
        f"{SCD} with one stream per request and position; measured χ²/df 8.2",
        _keyed_by_position(Rejection),
    ),
    Mutant(
        "shared-noise-under-rejection",
        "the draft is drawn with the target's noise, and rejection draws its residual with it again",
        "a serving engine that mixed Gumbel sharing (arXiv 2408.07978) with rejection, fixed in 2026",
        both(
            replacing(Rejection, "draft_noise", lambda original: lambda self, round: _Borrowed(round)),
            replacing(Rejection, "accept", _shared_accept),
        ),
    ),
    Mutant(
        "one-gumbel-row-for-redraw-and-residual",
        "a window is redrawn by shared noise, then verified by rejection whose residual has that same noise",
        f"{SCD}: Gumbel sharing followed by an acceptance test",
        both(
            replacing(Rejection, "accept", _shared_accept),
            replacing(Jacobi, "drafted", _redrawn_by_position),
        ),
    ),
    Mutant(
        "one-gumbel-row-while-warming-up",
        "the first three units share the noise of one position",
        f"{SCD}, the released code for Lumina-mGPT: no shift while units come one by one",
        replacing(PhiloxSource, "by_position", _one_row_at_first),
    ),
    Mutant(
        "draft-noise-once-per-call",
        "the noise that chooses the siblings is drawn once and used in every round: only joints show it",
        "Sequoia (arXiv 2402.12374), the released code",
        replacing(DraftNoise, "level", _once_per_call),
    ),
    Mutant(
        "positions-by-index-instead-of-depth",
        "the draw at a tree's node uses the noise of position length + index",
        "tree verification with positions by index; SpecInfer (arXiv 2305.09781) counts depth",
        replacing(Round, "by_position", _by_index),
    ),
    Mutant(
        "noise-by-place-in-the-batch",
        "a row's seed is mixed with its place, so that its output depends on its batch",
        "serving engines that draw by the row of the batch",
        replacing(PhiloxSource, "seeded", _by_place),
    ),
    Mutant(
        "uniform-that-can-be-zero",
        "a uniform of exactly 0 makes an exponential of 0: a unit of probability 0 can win the race",
        "the usual `word * 2**-32`, which contains 0; uniforms must lie in the open interval",
        replacing(core, "uniform_of", lambda original: lambda words: words.float() * 2.0**-32),
    ),
)
