"""What a benchmark writes: one JSON document, raw repeats always, so that anyone can recompute every number.

A document holds several settings (`"code, greedy"`); every row carries the repeats of plain decoding that ran
interleaved with its own. Speed-up is the median over repeats of plain seconds / own seconds; it is computed wherever it
is shown, and no document holds it. A document may come from anybody: `mmspec.report.trust` says what is refused.
"""

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, FiniteFloat

from mmspec.files import save_text

PLAIN = "plain"
Repeats = list[Annotated[float, Field(ge=1e-9, le=1e9)]]
"""Seconds of every repeat: a clock that stood still measured nothing."""
Amount = Annotated[float, Field(ge=0, le=1e12)]
Count = Annotated[int, Field(ge=0, le=2**53)]
Nodes = Annotated[str, Field(pattern=r"^[0-9]{1,9}$")]
"""A number of nodes, as text, since JSON has no other keys."""
#: How the drafts of a row came about.
MODES = ("real", "oracle", "synthetic", "empty")


@dataclass(frozen=True)
class BenchRow:
    """One method in one setting.

    Attributes:
        method: Its name; in another mode than `real`, what stands in for it (`oracle`, …).
        exactness: What its rule promises.
        setting: What was decoded and how: `"code, greedy"`.
        mode: `real`, `oracle` (drafts are the truth), `synthetic` (accepted at a given rate), `empty` (drafter there,
            nothing drafted).
        batch: Rows decoded together.
        units: Units emitted in one repeat.
        target_passes: Passes of the target after prefill, in one repeat.
        equivalent_passes: How often the target's weights were read for them and for their drafts; None where it was
            not counted.
        acceptance_length: Emitted units per row and pass after prefill, bonus included.
        acceptance_by_depth: Share of row rounds whose path reached depth 1, 2, ….
        passes_by_nodes: How many of the passes had so many nodes, the root included; by number, as text.
        repeats_s: Seconds of every repeat.
        plain_repeats_s: Seconds of plain decoding, interleaved with `repeats_s`.
        draft_s: Seconds spent drafting, median repeat.
        verify_s: Seconds spent in the target, prefill left out.
        rest_s: Seconds of rule, commit and the loop.
        peak_memory: Bytes of target and drafter, of the copies of their weights, and the most that a call adds; None
            where it was not measured.
        laid_out: Bytes of `peak_memory` that are copies of weights, laid out for narrow passes; None where they were
            not counted.
        alone_repeats_s: Of a batch: seconds of the same rows one after the other, interleaved with `repeats_s`.
        quality: Numbers about what was made (`distinct_3`, `same_as_plain`), and of lossy methods what they lost.
        options: What the method was run with.
    """

    method: str
    exactness: str
    setting: str
    units: Count
    target_passes: Count
    acceptance_length: Amount
    acceptance_by_depth: list[FiniteFloat]
    repeats_s: Repeats
    plain_repeats_s: Repeats
    draft_s: Amount
    verify_s: Amount
    rest_s: Amount
    peak_memory: Count | None = None
    laid_out: Count | None = None
    equivalent_passes: Count | None = None
    quality: dict[str, FiniteFloat] = field(default_factory=dict)
    mode: str = "real"
    batch: Annotated[int, Field(ge=1, le=2**31)] = 1
    options: dict[str, Any] = field(default_factory=dict)
    passes_by_nodes: dict[Nodes, Count] = field(default_factory=dict)
    alone_repeats_s: Repeats = field(default_factory=list)

    @property
    def speedup(self) -> float:
        """Median of plain seconds / own seconds over the repeats."""
        return speedup_of(self.plain_repeats_s, self.repeats_s)

    @property
    def tokens_per_second(self) -> float:
        """Units of a median repeat per second, all rows together."""
        return self.units / statistics.median(self.repeats_s)

    @property
    def spread(self) -> tuple[float, float]:
        """Smallest and largest speed-up of a single repeat."""
        ratios = ratios_of(self.plain_repeats_s, self.repeats_s)
        return min(ratios), max(ratios)


@dataclass(frozen=True)
class Peer:
    """Another decoding of the same prompts with the same weights, interleaved with our rows.

    Attributes:
        setting: As in `BenchRow`.
        repeats_s: Seconds of every repeat.
        units: Units emitted in one repeat.
        note: How it was run, or why it was not (then without repeats).
        ours: Whether it is a loop of ours, not somebody's software: no measure of anything where plain decoding is
            faster.
        chosen: The setting that it ran with, the fastest of `tried`; "" where there was no choice.
        tried: Seconds of every setting on the calibration share.
    """

    setting: str
    repeats_s: Repeats
    units: Count = 0
    note: str = ""
    ours: bool = False
    chosen: str = ""
    tried: dict[str, Amount] = field(default_factory=dict)


@dataclass(frozen=True)
class Limits:
    """What the hardware and the drafts would allow.

    Attributes:
        v_of_n: Seconds of a target pass over N nodes / over one, by N.
        c: Seconds of a drafter's forward / of a target pass over one node, by drafter model.
        F_hw: Floor of a pass by memory bandwidth and arithmetic / its seconds, by N.
        F_pipe: Seconds of drafts and of bare passes of the same sizes / seconds of the rounds, by
            `"setting / method"`: what is left is the loop's.
        F_tree: Expected acceptance of the method's tree / that of the best tree of as many nodes.
        F_total: Measured speed-up / the best that the measured acceptance allows on a perfect pass with free drafts.
        measured: What the floors were computed from: bandwidth, arithmetic, bytes, seconds.
        by_nodes: Further numbers of passes over N nodes, by what they are, then by N.
    """

    v_of_n: dict[Nodes, FiniteFloat] = field(default_factory=dict)
    c: dict[str, FiniteFloat] = field(default_factory=dict)
    F_hw: dict[Nodes, FiniteFloat] = field(default_factory=dict)
    F_pipe: dict[str, FiniteFloat] = field(default_factory=dict)
    F_tree: dict[str, FiniteFloat] = field(default_factory=dict)
    F_total: dict[str, FiniteFloat] = field(default_factory=dict)
    measured: dict[str, FiniteFloat] = field(default_factory=dict)
    by_nodes: dict[str, dict[Nodes, FiniteFloat]] = field(default_factory=dict)


@dataclass(frozen=True)
class Result:
    """A benchmark.

    Attributes:
        kind: `text`, `image`, ….
        model: The target's name.
        device: In words: processor, threads; or the GPU.
        versions: Of mmspec, torch, transformers, Python.
        seed: Of every sampled call.
        prompts: Number of prompts by text.
        rows: Ours.
        peers: Others', by `"setting / name"`.
        limits: See there.
        teacher_forced: Acceptance length on held-out text whose truth is forced, by text, then method.
        unit: What a unit is called: `token`, `code`, ….
        piece: What one output is called: `text`, `picture`, ….
        how: What a reader should know of how it was run, in sentences.
        floor: Numbers as in `quality`, of plain decoding with other seeds, by setting and name: what chance alone does.
        notes: What the names in `quality` mean, where that is not plain.
    """

    kind: str
    model: str
    device: str
    versions: dict[str, str]
    seed: int
    prompts: dict[str, Count]
    rows: list[BenchRow]
    peers: dict[str, Peer]
    limits: Limits
    teacher_forced: dict[str, dict[str, FiniteFloat]] = field(default_factory=dict)
    unit: str = "token"
    piece: str = "text"
    how: str = ""
    floor: dict[str, dict[str, list[FiniteFloat]]] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        """Write JSON; nothing half-written stays."""
        save_text(path, json.dumps(asdict(self), indent=1, allow_nan=False) + "\n")

    @staticmethod
    def load(path: Path) -> "Result":
        """Read what `save` wrote.

        Raises:
            ValueError: The file is not such a document; says where.
        """
        from mmspec.report.trust import checked

        return checked(Path(path).read_bytes(), str(path))

    @property
    def settings(self) -> list[str]:
        """In the order of the rows."""
        return list(dict.fromkeys(row.setting for row in self.rows))

    def row(self, setting: str, method: str, mode: str = "real", batch: int = 1) -> BenchRow:
        """The one row of that description.

        Raises:
            KeyError: There is none.
        """
        for row in self.rows:
            if (row.setting, row.method, row.mode, row.batch) == (setting, method, mode, batch):
                return row
        raise KeyError(f"no row {method!r} ({mode}, batch {batch}) in {setting!r}")

    def against(self, row: BenchRow, peer: str) -> float:
        """Speed of a row as a multiple of a peer's in the same setting: median of the paired ratios."""
        return speedup_of(self.peers[f"{row.setting} / {peer}"].repeats_s, row.repeats_s)


def ratios_of(base: Sequence[float], own: Sequence[float]) -> list[float]:
    """Base seconds / own seconds, repeat by repeat."""
    return [b / o for b, o in zip(base, own, strict=True)]


def speedup_of(base: Sequence[float], own: Sequence[float]) -> float:
    """Median of the paired ratios."""
    return statistics.median(ratios_of(base, own))
