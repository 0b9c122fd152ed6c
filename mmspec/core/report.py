"""Counts and times of one call, in vLLM's definitions.

Acceptance length: emitted units per target pass after prefill, bonus included. Acceptance rate: accepted / drafted.
Step compression: passes that plain decoding needs / passes. Equivalent passes include the passes of drafters that read
the target's own weights, which acceptance length leaves out.
"""

import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor

from mmspec.core import report_views
from mmspec.core.transfer import widest
from mmspec.core.types import Draft, Verdict

PHASES = ("prefill", "draft", "verify", "rest")


def tallied(valid: Tensor, length: Tensor, active: Tensor) -> tuple[Tensor, Tensor]:
    """Drafted nodes of a round, and accepted ones by depth `[node - 1]`; arguments as in `Report.count`."""
    depth = torch.arange(1, valid.shape[1], device=valid.device)
    accepted = ((length[:, None] >= depth) & active[:, None]).sum(0)
    return (valid[:, 1:] & active[:, None]).sum(), accepted


@dataclass(frozen=True)
class Bias:
    """The bias of a lossy rule in the output: the distance of the emitted units' distribution from the target's.

    A rule that measures states in its verdict, for every node, the total variation between the distribution of the unit
    that it emits there and the target's, and by how much its acceptance exceeds an exact rule's. Both are summed over
    the nodes at which a unit was really emitted: from the root to the last accepted node, after truncation.
    """

    tv: float  # mean total variation of an emitted unit from the target's distribution
    altered: float  # expected number of altered units per row: the sum of these total variations
    excess_acceptance: float  # mean acceptance probability of a decided node, less that under an exact rule

    def __str__(self) -> str:
        return (
            f"expected altered units per row {self.altered:.1f}, "
            f"total variation per unit {self.tv:.4f}, acceptance in excess by {self.excess_acceptance:.4f}"
        )


@dataclass(frozen=True)
class Promise:
    """The promise of a call's output (`mmspec.core.promise`)."""

    exactness: str
    width: int | None  # of the plain decoding that the output equals to the bit; None: there is none
    repeatable: bool
    timed: str
    rounded: bool


@dataclass(repr=False)
class Report:
    """Filled by the decoder; read after the call."""

    method: str = "plain"  # name of the method, or of the drafter
    exactness: str = "invariant"  # the rule's exactness
    wrt: str = ""  # the distribution that the exactness is of, in words; "" for the target's own
    k: int = 0  # most units per path of a draft
    k_from: str = ""  # whose number that is, in words; "" for the user's
    rounds: int = 0  # passes of the target after prefill
    row_rounds: int = 0  # rows that took part in them, summed over rounds
    inner_passes: int = 0  # drafting passes over the target's own weights, as a cascade's middle level makes them
    emitted: int = 0  # units emitted, summed over rows, the prefill's included
    rows: int = 0  # rows of the batch
    # Prompts that the prefill read, negative ones included, where several rows have the same; None: every row's own
    prompts: int | None = None
    # Bytes that the caches of target and drafter held, where a budget limits them; else None
    cache_bytes: int | None = None
    # These, the weights of both, copies of weights, and the largest pass, as counted under a budget; else None
    memory_bytes: int | None = None
    # Number of passes by number of nodes, root and padding included
    sizes: Counter[int] = field(default_factory=Counter)
    # Wall time by phase. On a GPU these are times to issue work, not to run it: the host waits in the phase `rest` of a
    # round, where it reads how many units there are. Only their sum is the device's time.
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    faults: int = 0  # how often the drafter or the policy failed; such rounds ran without a draft
    # Whether the same call with the same seed gives the same output. False if drafts change what is drawn and their
    # lengths follow measured times (a lossless rule with the policy `goodput`), or where equal passes of the device
    # differ (plain decoding of several rows in half precision on CUDA).
    repeatable: bool = True
    # What of the call followed measured times, in words, so that another run may round otherwise; "" for nothing
    timed: str = ""
    products: str = ""  # who computed the linear layers of passes; "" for torch
    # Nodes of every pass after the prefill, if that is one number for the whole call; None: any number
    width: int | None = None
    compiled: bool = False  # whether captured rounds ran that torch compiled
    recorded: bool = False  # whether captured rounds ran as they are, each as one graph
    rounded: bool = False  # whether the target quantises activations, and rounds a unit by what its pass holds
    half: bool = False  # whether the target computes in half precision, where equality is one of equal passes
    trace: Any = None  # what every round did (`mmspec.core.trace.Trace`), where that was asked for; else None.
    _drafted: Tensor | None = None
    _accepted: Tensor | None = None
    _read: list[int] = field(default_factory=list)  # of captured rounds: drafted nodes, then accepted ones by depth
    _bias_sums: Tensor | None = None

    def take(self, promise: Promise) -> None:
        """Say what a call promises."""
        self.exactness, self.width, self.repeatable = promise.exactness, promise.width, promise.repeatable
        self.timed, self.rounded = promise.timed, promise.rounded

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the wall time of the block to a phase; on a GPU, the time to launch its kernels, not to run them."""
        began = time.perf_counter()
        try:
            yield
        finally:  # a pass that raised took time, too
            self.seconds[name] += time.perf_counter() - began

    def count(self, valid: Tensor, length: Tensor, active: Tensor, nodes: int | None = None) -> None:
        """Add one round, without a host sync.

        Args:
            valid: `[batch, node]` bool of the rooted draft.
            length: `[batch]` accepted nodes.
            active: `[batch]` bool: rows that were not done.
            nodes: Nodes of the pass; default: as many as the draft has.
        """
        self.sizes[valid.shape[1] if nodes is None else nodes] += 1
        if valid.shape[1] > 1:  # else there was no draft, and there is nothing to count
            self.add(*tallied(valid, length, active))

    def add(self, drafted: Tensor, accepted: Tensor) -> None:
        """Add one round's tallies."""
        self._drafted = drafted if self._drafted is None else self._drafted + drafted
        self._accepted = accepted if self._accepted is None else _add(self._accepted, accepted)

    def add_read(self, drafted: int, accepted: Sequence[int]) -> None:
        """Add one round's tallies that the host has read."""
        self._read = [a + b for a, b in zip_longest(self._read, (drafted, *accepted), fillvalue=0)]

    def add_bias(self, draft: Draft, verdict: Verdict, count: Tensor) -> None:
        """Add one round's bias, if the rule measured it, without a host sync; rows with a count of 0 were done."""
        if verdict.tv is not None:
            new = bias_sums(draft, verdict, count)
            self._bias_sums = new if self._bias_sums is None else self._bias_sums + new

    @property
    def bias(self) -> Bias | None:
        """The bias of a lossy rule; None if the rule is exact, or did not measure."""
        if self._bias_sums is None:
            return None
        tv, excess_acceptance, decided = self._bias_sums.tolist()
        return Bias(tv / max(self.emitted, 1), tv / max(self.rows, 1), excess_acceptance / max(decided, 1))

    @property
    def drafted(self) -> int:
        """Drafted nodes that were verified."""
        return (0 if self._drafted is None else int(self._drafted)) + (self._read[0] if self._read else 0)

    @property
    def accepted_by_depth(self) -> list[int]:
        """The number of times that a node of depth 1, 2, … was accepted."""
        counted = [] if self._accepted is None else self._accepted.tolist()
        return [a + b for a, b in zip_longest(counted, self._read[1:], fillvalue=0)]

    @property
    def accepted(self) -> int:
        return sum(self.accepted_by_depth)

    @property
    def equivalent_passes(self) -> int:
        """Times that the target's weights were read after prefill: by its passes, and by drafters that share them."""
        return self.rounds + self.inner_passes

    @property
    def shape(self) -> str:
        """The equality with plain decoding that holds, in half precision, too."""
        if self.exactness == "lossless":
            return f"with plain in distribution{self._rounding}, not in units: these depend on the drafts"
        if self.exactness != "invariant":
            return "none with plain: the rule changes the distribution"
        if self.width is None:
            more = "; shape='one' gives all one width, and equality with its plain to the bit" if self.half else ""
            return f"with plain up to near-ties, which passes of different widths round differently{more}"
        way = "compiled " if self.compiled else "recorded " if self.recorded else ""
        return f"to the bit with {way}plain of width {self.width}"

    @property
    def promise(self) -> str:
        """The exactness, and of which distribution it is if not of the target's own."""
        wrt = f" with respect to {self.wrt}" if self.wrt else ""
        return f"{self.exactness}{wrt}{self._rounding}{' up to near-ties' if self._may_differ else ''}"

    @property
    def _may_differ(self) -> bool:
        """True if a near-tie may change an output that is plain decoding's otherwise."""
        return self.half and self.exactness == "invariant" and self.width is None and self.k > 0

    @property
    def _rounding(self) -> str:
        return " up to the rounding of quantised activations" if self.rounded else ""

    @property
    def acceptance_length(self) -> float:
        """Emitted units per target pass after prefill."""
        return (self.emitted - self.rows) / self.row_rounds if self.row_rounds else 0.0

    @property
    def acceptance_rate(self) -> float:
        """Accepted / drafted."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @classmethod
    def total(cls, reports: Iterable["Report"]) -> "Report":
        """The report of several calls, or none, as of one: counts and times are sums, the promise is the weakest."""
        reports = list(reports)
        whole = cls(**report_views.summed(reports)) if reports else cls()
        for report in reports:
            if report._read:
                whole.add_read(report._read[0], report._read[1:])
            if report._drafted is not None and report._accepted is not None:
                whole.add(report._drafted, report._accepted)
            if report._bias_sums is not None:
                sums = report._bias_sums
                whole._bias_sums = sums if whole._bias_sums is None else whole._bias_sums + sums
        return whole

    def to_dict(self) -> dict[str, Any]:
        """All that the report says, derived numbers included, of types that JSON has."""
        return report_views.values(self)

    def to_json(self, indent: int | None = None) -> str:
        """`to_dict` as JSON; `indent` as in `json.dumps`."""
        return json.dumps(self.to_dict(), indent=indent)

    def _repr_html_(self) -> str:
        return report_views.table(self)

    def __str__(self) -> str:
        spent = ", ".join(f"{name} {self.seconds[name]:.2f} s" for name in PHASES)
        inner = f" ({self.equivalent_passes} equivalent: drafts read the same weights)" if self.inner_passes else ""
        more = f"; drafts of up to {self.k} units, set by {self.k_from}" if self.k_from else ""
        more += "" if self.bias is None else f"; {self.bias}"
        more += f"; {self.shape}" if self._may_differ or self.width is not None else ""
        more += "" if self.prompts is None else f"; prompts read: {self.prompts} for {self.rows} rows"
        more += "" if self.cache_bytes is None else f"; caches of {self.cache_bytes:,} bytes of {self.memory_bytes:,}"
        why = "draft lengths follow the clock" if self.k else "on this device equal passes of one node may differ"
        more += "" if self.repeatable else f"; not repeatable: {why}"
        more += f"; not repeatable to the bit: {self.timed}" if self.repeatable and self.timed else ""
        return (
            f"{self.method} ({self.promise}): {self.emitted} units in {self.rounds} passes{inner}, "
            f"acceptance length {self.acceptance_length:.2f}, acceptance rate {self.acceptance_rate:.2f}{more}; {spent}"
        )

    __repr__ = __str__


def _add(a: Tensor, b: Tensor) -> Tensor:
    size = max(len(a), len(b))
    return torch.nn.functional.pad(a, (0, size - len(a))) + torch.nn.functional.pad(b, (0, size - len(b)))


def bias_sums(draft: Draft, verdict: Verdict, count: Tensor) -> Tensor:
    """One round's sums, without a host sync, `[3]`: total variation, excess acceptance, decided nodes.

    The verdict's rule has measured, and `count [batch]` are the units emitted, after truncation.
    """
    assert verdict.tv is not None and verdict.excess_acceptance is not None
    emitted, wide = verdict.emitted(count), widest(count.device)
    spare = torch.zeros(len(count), draft.nodes + 1, dtype=torch.bool, device=count.device)
    parent = torch.where(draft.valid[:, 1:], draft.index.parent[:, 1:], draft.nodes)
    decided = spare.scatter(1, parent, True)[:, :-1] & emitted
    return torch.stack(
        [(values * emitted).sum(dtype=wide) for values in (verdict.tv, verdict.excess_acceptance, decided)]
    )
