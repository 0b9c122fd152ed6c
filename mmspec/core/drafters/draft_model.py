"""A smaller model of the same units as drafter: the chain of speculative sampling (arXiv 2211.17192, 2302.01318).

The drafter has a cache of its own, which may lag behind: units that it has not seen (the last draft when all of it was
accepted, whatever was emitted in rounds without a draft) go in as one chain before the first draw. Its laws pass
through the same warp as the target's, so that a draft's law is the one it was really drawn from.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from mmspec.core.laws import Law
from mmspec.core.noise import DraftNoise
from mmspec.core.protocols import Target
from mmspec.core.state import State
from mmspec.core.types import Draft, Raw, Scores, Step
from mmspec.core.warp import Prefix


@dataclass
class Memory:
    """What the drafter knows of a call.

    Attributes:
        cache: The small model's cache.
        prompt: `[batch]` prompt units in it, padding not counted.
        seen: Emitted units in it, per row, on the host.
        before: `state.hosted` when the last settled round began; None once it was accounted for.
        fed: Drafted units that went into the cache in that round; None if nothing was drafted.
    """

    cache: Any
    prompt: Tensor
    seen: list[int]
    before: list[int] | None = None
    fed: int | None = field(default=None)


class DraftModel:
    """Drafts a chain with a smaller target.

    Args:
        model: Any target whose units are the larger one's.
    """

    offers = frozenset({"chain", "q"})
    needs: frozenset[str] = frozenset()

    def __init__(self, model: Target) -> None:
        self.model = model

    def bind(self, target: Target) -> None:
        if "truncate" not in self.model.offers:
            raise ValueError(f"{type(self.model).__name__} cannot forget refused units, so it cannot draft a chain")
        if self.model.vocab != target.vocab:
            raise ValueError(
                f"the draft model has {self.model.vocab} unit ids and the target {target.vocab}; "
                "a draft model must share the target's vocabulary"
            )

    def width(self, k: int) -> int:
        return k

    def start(self, state: State, inputs: Any) -> Memory:
        started = self.model.start(inputs, state.limit, state.limit)
        return Memory(started.cache, state.given - state.pads, [0] * state.rows)

    def propose(self, state: State, k: int, noise: DraftNoise) -> Draft:
        memory: Memory = state.memory
        self._account(state)
        raw = self._catch_up(state, memory)
        units: list[Tensor] = []
        laws: list[Law] = []
        for depth in range(1, k + 1):
            if units:
                raw = self._feed(state, memory, units[-1])
                memory.fed = depth - 1  # at once: should the model fail later, its cache can still be rolled back
            scores = self._warp(state, raw, units)
            laws.append(scores.law)
            units.append(scores.law.draw(noise.chain(depth, 1))[:, 0])
        law = type(laws[0]).cat(laws)
        return Draft.chain(torch.stack(units, 1), None if noise.shared else law, score=law.confidence().cumsum(1))

    def observe(self, state: State, step: Step) -> None:
        self._account(state)
        state.memory.before = list(state.hosted)

    def _account(self, state: State) -> None:
        """Once a round's sync has come: keep of the cache what was accepted, forget the rest."""
        memory: Memory = state.memory
        if memory.before is None:
            return
        if memory.fed is not None:
            accepted = [max(0, now - then - 1) for now, then in zip(state.hosted, memory.before, strict=True)]
            memory.seen = [then + min(a, memory.fed) for then, a in zip(memory.before, accepted, strict=True)]
            seen = torch.tensor(memory.seen, device=state.emitted.device)
            self.model.truncate(memory.cache, memory.prompt + seen)
        memory.before = memory.fed = None

    def _catch_up(self, state: State, memory: Memory) -> Raw:
        """Feed every known unit that the cache lacks; scores after the last one, one node."""
        missing = [now - seen for now, seen in zip(state.hosted, memory.seen, strict=True)]
        device = state.emitted.device
        count = torch.tensor(missing, device=device)
        order = torch.arange(max(missing), device=device)
        where = (state.known - count)[:, None] + order.clamp(max=max(missing) - 1)
        where = where.clamp(max=state.history.shape[1] - 1)
        known = state.history.gather(
            1, where.reshape(*where.shape, *(1,) * (state.history.dim() - 2)).expand(-1, -1, *state.history.shape[2:])
        )
        draft = Draft.chain(known[:, 1:]).rooted(known[:, 0], count - 1)
        raw = self.model.verify(memory.cache, draft)
        self.model.commit(memory.cache, order[1:].expand(state.rows, -1), count)
        memory.seen = list(state.hosted)
        return raw.take((count - 1).clamp(min=0)[:, None])

    def _feed(self, state: State, memory: Memory, unit: Tensor) -> Raw:
        draft = Draft.empty(unit).rooted(unit, torch.zeros_like(state.emitted))
        raw = self.model.verify(memory.cache, draft)
        self.model.commit(memory.cache, draft.index.parent[:, 1:].expand(state.rows, -1), (~state.done).long())
        return raw

    @staticmethod
    def _warp(state: State, raw: Raw, units: list[Tensor]) -> Scores:
        """The law after the units drafted so far, under the call's own warp."""
        drafted = torch.stack(units, 1) if units else state.root[:, None][:, :0]
        path = Draft.chain(drafted).rooted(state.root, torch.full_like(state.emitted, state.limit))
        prefix = Prefix(state.history, [state.given + n for n in state.hosted])
        return state.warp(raw, path, prefix, slice(len(units), None))
