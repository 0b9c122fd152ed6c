"""The document that a benchmark writes: JSON with all raw repeats, from which every number can be recomputed.

A document holds several settings (`"code, greedy"`); every row holds the repeats of plain decoding that ran interleaved
with its own. Speed-up is the median over repeats of plain seconds / own seconds; it is computed where it is shown and
never stored. The one ratio in a document, `vs_best`, is for programs that read it, and must be what the repeats give.
Documents are not trusted: `mmspec.report.trust` validates them.
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
"""Seconds of every repeat; at least 1e-9, below which a clock measures nothing."""
Amount = Annotated[float, Field(ge=0, le=1e12)]
Count = Annotated[int, Field(ge=0, le=2**53)]
Nodes = Annotated[str, Field(pattern=r"^[0-9]{1,9}$")]  # a number of nodes as text, since keys of JSON are texts


@dataclass(frozen=True)
class Row:
    """One method in one setting."""

    method: str  # name of the method; in another mode than `real`, name of the artificial drafter (`oracle`, …)
    exactness: str  # the promise of its rule
    setting: str  # what was decoded and how: `"code, greedy"`
    units: Count  # units emitted in one repeat
    target_passes: Count  # passes of the target after prefill, in one repeat
    acceptance_length: Amount  # emitted units per row and pass after prefill, bonus included
    acceptance_by_depth: list[FiniteFloat]  # share of row rounds whose path reached depth 1, 2, …
    repeats_s: Repeats  # seconds of every repeat
    plain_repeats_s: Repeats  # seconds of plain decoding, interleaved with `repeats_s`
    draft_s: Amount  # seconds of drafting in the median repeat
    verify_s: Amount  # seconds of the target's passes in the median repeat, without prefill
    rest_s: Amount  # seconds of the rule, commits and the loop in the median repeat
    # Bytes of target and drafter, of copies of their weights, and of the largest growth in a call; None if not measured
    peak_memory: Count | None = None
    # Bytes of `peak_memory` that are copies of weights, laid out for narrow passes; None if not counted
    laid_out: Count | None = None
    # Number of reads of the target's weights, by its passes and by drafts; None if not counted
    equivalent_passes: Count | None = None
    # Numbers about the output by name (`distinct_3`, `same_as_plain`); of lossy methods also their loss
    quality: dict[str, FiniteFloat] = field(default_factory=dict)
    # `real`, `oracle` (drafts are the target's output), `synthetic` (drafts are accepted at a given rate), `empty`
    # (nothing is drafted)
    mode: str = "real"
    batch: Annotated[int, Field(ge=1, le=2**31)] = 1  # rows decoded together
    options: dict[str, Any] = field(default_factory=dict)  # options of the method
    # Number of passes by their number of nodes, root included; the key is text
    passes_by_nodes: dict[Nodes, Count] = field(default_factory=dict)
    # For a batch: seconds of the same rows one after the other, interleaved with `repeats_s`
    alone_repeats_s: Repeats = field(default_factory=list)

    @property
    def speedup(self) -> float:
        """Median of plain seconds / own seconds over the repeats."""
        return speedup_of(self.plain_repeats_s, self.repeats_s)

    @property
    def tokens_per_second(self) -> float:
        """Units per second of the median repeat, all rows together."""
        return self.units / statistics.median(self.repeats_s)


@dataclass(frozen=True)
class Peer:
    """Other software that decodes the same prompts with the same weights, interleaved with our rows."""

    setting: str  # as in `Row`
    repeats_s: Repeats  # seconds of every repeat; empty if it could not be run
    units: Count = 0  # units emitted in one repeat
    note: str = ""  # how it was run, or why it could not be run
    ours: bool = False  # whether it is a loop that we wrote; such a peer is ignored where plain decoding is faster
    chosen: str = ""  # the setting that it ran with, the fastest of `tried`; "" if there was no choice
    tried: dict[str, Amount] = field(default_factory=dict)  # seconds of every setting on the calibration share


@dataclass(frozen=True)
class VsBest:
    """Our speed in a setting as a multiple of the best other way's."""

    way: str  # name of the fastest peer; `plain` where no other software, and no faster loop of ours, decodes the same
    # Median of the paired ratios of seconds, by method, plain decoding included; real drafts, batch 1
    times: dict[str, FiniteFloat]


@dataclass(frozen=True)
class Result:
    kind: str  # kind of benchmark: `text`, `image`, …
    model: str  # name of the target
    device: str  # the processor and its threads, or the GPU, in words
    versions: dict[str, str]  # versions of mmspec, torch, transformers and Python
    seed: int  # seed of every sampled call
    prompts: dict[str, Count]  # number of prompts by text
    rows: list[Row]  # rows of our methods
    peers: dict[str, Peer]  # other software, by `"setting / name"`
    unit: str = "token"  # word for a unit: `token`, `code`, …
    piece: str = "text"  # word for one output: `text`, `picture`, …
    how: str = ""  # how the benchmark was run, in sentences
    # Speed against the best other way, by setting (`mmspec.report.views.vs_best`).
    vs_best: dict[str, VsBest] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        """Write JSON; the file is written whole or not at all."""
        save_text(path, json.dumps(asdict(self), indent=1, allow_nan=False) + "\n")

    @property
    def settings(self) -> list[str]:
        return list(dict.fromkeys(row.setting for row in self.rows))

    def row(self, setting: str, method: str, mode: str = "real", batch: int = 1) -> Row:
        """The row of a setting, method, mode and batch size."""
        for row in self.rows:
            if (row.setting, row.method, row.mode, row.batch) == (setting, method, mode, batch):
                return row
        raise KeyError(f"no row {method!r} ({mode}, batch {batch}) in {setting!r}")

    def against(self, row: Row, peer: str) -> float:
        """Speed of a row as a multiple of a peer's in the same setting (median of the paired ratios)."""
        return speedup_of(self.peers[f"{row.setting} / {peer}"].repeats_s, row.repeats_s)


def ratios_of(base: Sequence[float], own: Sequence[float]) -> list[float]:
    return [b / o for b, o in zip(base, own, strict=True)]


def speedup_of(base: Sequence[float], own: Sequence[float]) -> float:
    return statistics.median(ratios_of(base, own))
