"""A draft model that drafts while the target verifies, under `match`: PEARL (arXiv 2408.11850), Saguaro (2603.03251).

In every round the draft model drafts `k` units behind the draft that the target is verifying (PEARL's post-verify); if
nothing was drafted, the target's pass over the root alone checks the first of them meanwhile (pre-verify). If the whole
draft is accepted and the one more unit is the draft model's own, the other `k - 1` are the next draft. With more
`branches` it drafts behind other outcomes of the round, too (`mmspec_zoo.overlap.outcomes`). After an outcome that
nothing was drafted for, a row decodes one unit without a draft, as in PEARL, or waits for a new one, as in Saguaro.
A round takes max(k · t_d, t_v), and k · t_d more after such a wait, instead of k · t_d + t_v where the two run side by
side; `executors` and `process` run the draft model.
PEARL's two modes, with their ratios and rollbacks, need no code of their own here: p's draws are a function of the
position, so a stale draft can only be wrong, never biased.
Guarantee: `match`'s, whatever the executor does. Needs a rule under which nodes may be dropped once their units
are seen.
Knobs: `k` (γ; higher hides a faster draft model's time behind a pass; a miss then throws more away); `branches` (higher
hits more often; every pass of the draft model then has so many nodes); `on_miss`; the executor.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from mmspec.core.capabilities import Bounded
from mmspec.core.drafters.draft_model import CATCH_UP, DraftModel
from mmspec.core.noise import DraftNoise
from mmspec.core.protocols import Target
from mmspec.core.state import State
from mmspec.core.types import Draft, Step
from mmspec.hosts.devices import device_of, refuse_device
from mmspec.hosts.draft_models import drafting_target
from mmspec.hosts.target import TransformersTarget
from mmspec.kits.text.small_model import SmallModelOptions, in_target_ids, load_small_model
from mmspec.registry.options import option
from mmspec_zoo.overlap.ahead import Ahead, Request
from mmspec_zoo.overlap.continuation import Beginning
from mmspec_zoo.overlap.executors import Executor, Lane, Serial, Streams
from mmspec_zoo.overlap.outcomes import Fan, Margin
from mmspec_zoo.overlap.process import Process

OnMiss = Literal["plain", "draft"]


@dataclass
class OverlappedMemory:
    lane: Lane  # where its requests go
    asked: Tensor | None = None  # `[batch]`: the tag of the request that is not answered yet; None: all are
    discarded: int = field(default=0)  # answers that nobody waited for


class Overlapped:
    """Drafts chains ahead with a draft model, which offers `grow` and has the same units as the call's target.

    By default it runs serially, in the same thread, and drafts for the likeliest outcomes. `on_miss` is what a row does
    whose round had another outcome: decode without a draft, or wait for one.
    """

    offers = frozenset({"chain"})
    needs = frozenset({"discrete", "rerank"})
    # The unit that the draft model was trained to fill in: it then drafts all units of a request in one pass
    mask: int | None = None

    def __init__(
        self,
        model: Target,
        executor: Executor | None = None,
        branches: int = 1,
        fan: Fan | None = None,
        on_miss: OnMiss = "plain",
    ) -> None:
        if branches < 1:
            raise ValueError(f"branches must be at least 1, got {branches}")
        self.model, self.branches, self.on_miss = model, branches, on_miss
        self.executor: Executor = executor if executor is not None else Serial()
        self.fan: Fan = fan if fan is not None else Margin()

    def bind(self, target: Target) -> None:
        DraftModel(self.model).bind(target)  # the same conditions
        assert target.vocab is not None, "the target is discrete"
        self._vocab = target.vocab

    def width(self, k: int) -> int:
        return k

    def start(self, state: State, inputs: Any) -> OverlappedMemory:
        width = CATCH_UP + (1 + self.outcomes(state.budget.k)) * state.budget.k
        device = state.emitted.device
        how = Beginning(inputs, state.limit, width, CATCH_UP, state.rows, device, self.mask)
        return OverlappedMemory(self.executor.open(self.model, how))

    def propose(self, state: State, k: int, noise: DraftNoise) -> Draft:
        draft = self._arrived(state, k)
        if self.on_miss == "draft":
            draft = self._filled(state, draft, k, noise)
        request = self._request(state, draft, k, noise, self.outcomes(draft.units.shape[1]))
        if request is not None:
            self._ahead(state, draft, request)
        return draft

    def outcomes(self, width: int) -> int:
        """The number of outcomes that are drafted for behind a draft of `width` units."""
        return self.branches

    def _arrived(self, state: State, k: int) -> Draft:
        """The part of the last request's answer that is for the rows."""
        ahead = _expected(state.memory)
        return Draft.empty(state.root) if ahead is None else ahead.kept(state, k).compact()

    def _filled(self, state: State, draft: Draft, k: int, noise: DraftNoise) -> Draft:
        """The draft, where rows that have none wait for one."""
        missed = ~(draft.valid.any(1) | state.done)
        if not bool(missed.any()):
            return draft
        request = self._request(state, Draft.empty(state.root), k, noise, 1)
        if request is not None:
            self._submit(state, request)
        drafted = self._arrived(state, k)
        short = drafted.units.shape[1] - draft.units.shape[1]
        if short < 0:
            return draft
        units, valid = (torch.nn.functional.pad(part, (0, short)) for part in (draft.units, draft.valid))
        units = torch.where(missed[:, None], drafted.units, units)
        return Draft.chain(units, valid=torch.where(missed[:, None], drafted.valid, valid))

    def _request(self, state: State, draft: Draft, k: int, noise: DraftNoise, branches: int) -> Request | None:
        """The request behind a draft; None: there is no room for more."""
        count = min(k, state.most_room + 1, self._context(state) - draft.units.shape[1])
        if count <= 0:
            return None
        return Request.of(state, draft, count, noise, vocab=self._vocab, branches=branches, fan=self.fan)

    def _ahead(self, state: State, draft: Draft, request: Request) -> None:
        """Ask for what comes behind the draft that is about to be verified."""
        self._submit(state, request)

    def _submit(self, state: State, request: Request) -> None:
        memory: OverlappedMemory = state.memory
        memory.asked = request.emitted
        memory.lane.submit(request)

    def observe(self, state: State, step: Step) -> None:
        memory: OverlappedMemory = state.memory
        memory.lane.verified()

    def _context(self, state: State) -> int:
        """Units that the draft model's longest context still has place for."""
        context = self.model.context if isinstance(self.model, Bounded) else None
        return (
            state.limit + state.budget.k if context is None else context - state.prompt_length - max(state.host.emitted)
        )


def _expected(memory: OverlappedMemory) -> Ahead | None:
    """The answer to the last request, if it is there. All others, and its second copy, are discarded by their tag."""
    expected = None
    for ahead in memory.lane.collect():
        if memory.asked is not None and torch.equal(ahead.emitted, memory.asked):
            expected, memory.asked = ahead, None
        else:
            memory.discarded += 1
    memory.asked = None  # what comes later is late
    return expected


def mask_of(small: TransformersTarget) -> int | None:
    """The token that a draft model was trained to fill in, by its config; None: it was not."""
    named = small.model.config.to_dict().get("pard_token")
    return named if named in range(small.vocab or 0) else None


@dataclass(frozen=True)
class AheadOptions(SmallModelOptions):
    """The small model, where it runs, and for how many outcomes of a round it drafts."""

    executor: Literal["process", "streams", "serial"] = option(
        "process", "where the small model runs: elsewhere, in a thread and CUDA stream, or before each pass"
    )
    device: str | None = option(None, "the device of the small model's process: cpu, cuda:1; default: the target's")
    dtype: Literal["float32", "bfloat16", "float16"] | None = option(
        None, "the dtype there of a small model that is named; default: the target's"
    )
    branches: int = option(1, "outcomes of a round that are drafted for")


class DraftsAhead(Overlapped):
    """Drafts ahead with a smaller transformers model.

    By default the small model has a process of its own, with one thread of torch; the target's should have as many as
    there are other cores. There it is on the target's device and has its dtype, or those that are named. In this
    process it can have a thread, and on CUDA a stream. One that fills in masks (as `pard` takes it) drafts all units of
    a request in one pass.
    """

    def __init__(self, options: AheadOptions, method: str, fan: Fan | None, on_miss: OnMiss) -> None:
        if options.device is not None:
            refuse_device(options.device)
        self.options, self._small = options, load_small_model(options, method)
        self._placed: tuple[str, torch.dtype] | None = None
        executor = Streams() if options.executor == "streams" else Serial()  # of a process, until there is a target
        super().__init__(self._small, executor, options.branches, fan, on_miss)

    def bind(self, target: Target) -> None:
        """Map the small model's tokens to the target's, and choose where its process computes; refuses other
        vocabularies for a process.
        """
        aside = self.options.executor == "process"
        self.model = in_target_ids(self._small, target, self.options, here=not aside)
        if self.model is not self._small and aside:
            raise ValueError(
                "a draft model with another vocabulary runs in this process: executor=streams, or draft-model"
            )
        self.mask = mask_of(self._small) if self.model is self._small else None
        super().bind(target)
        if aside:
            self._place(target)

    def _place(self, target: Target) -> None:
        """The process for a target; the one that there is, if it computes in the right place."""
        device, dtype = "cpu", torch.float32
        if isinstance(target, TransformersTarget):
            device, dtype = str(device_of(target.model)), target.model.dtype
        device = self.options.device or device
        dtype = dtype if self.options.dtype is None else getattr(torch, self.options.dtype)
        if self._placed != (device, dtype):
            if isinstance(self.executor, Process):
                self.executor.close()
            self.executor = Process(partial(drafting_target, self.options.model, device, dtype), device=device)
            self.executor.start()  # it loads its model while the first call is prepared
            self._placed = device, dtype
