"""The benchmark of language models: all methods and transformers itself in turns, greedy and sampled."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from mmspec.api.build import decoder_for
from mmspec.api.plan import AUTO
from mmspec.bench.generate import GenerateCall
from mmspec.bench.methods import decoder_arguments
from mmspec.bench.race import Contestant, Plan, Run, planned, race, tune, tuning_calls
from mmspec.bench.rows import Footprint, peer_of, row_of
from mmspec.bench.timing import describe, versions
from mmspec.hosts.devices import dtype_of
from mmspec.hosts.loading import load_model, load_tokenizer
from mmspec.kits.text.bench.contestants import GRIDS, NGRAMS, PEERS, OurMethod, batch_rows, peers, refuse
from mmspec.kits.text.bench.settings import (
    BATCHED,
    GIVEN,
    SHARE,
    TEMPERATURES,
    BenchOptions,
    Subject,
    named,
    prompts,
    texts,
)
from mmspec.report.result import PLAIN, Peer, Result, Row

OVERHEAD = 1.15
"""Seconds of a whole benchmark / seconds of as many tokens of plain decoding: compiling, profiling and limits add time,
drafts save some. Two machines had 1.0 and 1.2."""
Truth = dict[tuple[int, ...], list[int]]  # prompt and plain output together, by prompt


@dataclass
class Bench:
    subject: Subject
    model: Any  # the target
    drafter: Any  # the draft model
    methods: Mapping[str, Mapping[str, Any]]  # our methods with their options; draft models in them are live
    pieces: Mapping[str, list[Tensor]]  # held-out texts by kind
    options: BenchOptions  # the size of the benchmark
    device: str  # the device of the models
    tick: Callable[[], None]  # called after every call
    rows: list[Row] = field(default_factory=list)  # the rows of the result so far
    peers: dict[str, Peer] = field(default_factory=dict)  # the peers' rows so far
    given: int | None = GIVEN  # tokens of a prompt; None: the pieces are prompts
    chosen: str = ""  # what `auto` takes here, and why
    memory: Mapping[str, Footprint] = field(default_factory=dict)  # memory of methods, where it was measured
    # Further contestants of a race, by name: they bound the loop. Given: how `generate` is called; prompt and plain
    # output by prompt
    bounds: Callable[[GenerateCall, Truth], Mapping[str, OurMethod]] = lambda call, truth: {}

    def run(self) -> Result:
        for kind, pieces in self.pieces.items():
            for temperature in TEMPERATURES:
                self._setting(named(kind, temperature), pieces, temperature)
        if self.options.batch:
            kind, pieces = self.first
            self.rows += batch_rows(self.call(0.0), self.subject, self.methods, kind, pieces, self.options, self.tick)
        return Result(
            kind=self.subject.kind,
            model=self.subject.target,
            device=describe(self.device),
            versions=versions(),
            seed=self.options.seed,
            prompts={kind: min(self.options.prompts, len(pieces)) for kind, pieces in self.pieces.items()},
            rows=self.rows,
            peers=self.peers,
            how=" ".join(filter(None, (self.options.dtype and f"Weights are in {self.options.dtype}.", self.chosen))),
        )

    @property
    def first(self) -> tuple[str, list[Tensor]]:
        return next(iter(self.pieces.items()))

    @property
    def task(self) -> dict[str, Tensor]:
        return prompts(self.first[1], 1, self.device, self.given)[0]

    def call(self, temperature: float) -> GenerateCall:
        return GenerateCall(self.model, self.options.new, temperature, self.options.seed)

    def once(self) -> Run:
        return OurMethod(self.call(0.0), {"method": PLAIN})(self.task)

    def _setting(self, setting: str, pieces: list[Tensor], temperature: float) -> None:
        call, truth = self.call(temperature), Truth()
        racers: dict[str, Contestant] = {PLAIN: OurMethod(call, {"method": PLAIN}, truth)}
        racers |= {name: OurMethod(call, {"method": name, **options}) for name, options in self.methods.items()}
        others = self.bounds(call, truth)
        tasks = prompts(pieces, self.options.prompts, self.device, self.given)
        ways = peers(call, self.drafter, self.options.files)
        tuned = {name: tune(way.ways, tasks[:SHARE], self.tick) for name, way in ways.items()}
        stock = {name: found.way for name, found in tuned.items()}
        tracks = race({**racers, **others, **stock}, tasks, self.options.repeats, optional=stock, tick=self.tick)
        for name in (*racers, *others):
            how: dict[str, Any] = {"setting": setting, "method": name}
            how |= {"quality": {"distinct_3": distinct(tracks[name].median, 3)}}
            options = self.subject.methods.get(name, {}) if name in racers else {"k": others[name].options["k"]}
            how |= {"options": options, "memory": self.memory.get(name), "mode": name if name in others else "real"}
            self.rows.append(row_of(tracks[name], tracks[PLAIN], **how))
        for name, way in ways.items():
            self.peers[f"{setting} / {name}"] = peer_of(tracks[name], setting, way.note, tuned=tuned[name])


def bench(
    subject: Subject,
    methods: list[str] | None,
    options: BenchOptions,
    device: str,
    progress: Callable[[Plan], Callable[[], None]],
    own: Sequence[str] | None = None,
) -> Result:
    """Load target and draft model, and run the benchmark: the named methods or all of the subject, on the user's own
    prompts or held-out texts. `progress` takes the plan, and returns what is called after each call.
    """
    run = prepared(subject, methods, options, device, own)
    run.tick = progress(_plan(run))
    return run.run()


def prepared(
    subject: Subject, methods: list[str] | None, options: BenchOptions, device: str, own: Sequence[str] | None = None
) -> Bench:
    """The benchmark with its models loaded and its methods tried; arguments as in `bench`."""
    refuse(options.files)
    dtype = dtype_of(options.dtype)
    model, drafter = load_model(subject.target, device, dtype), load_model(subject.drafter, device, dtype)
    wanted = [name for name in (subject.methods if methods is None else methods) if name != PLAIN]
    listed = {name: dict(subject.methods.get(name, {})) for name in wanted}
    live = {name: o | ({"drafter": drafter} if "drafter" in o else {}) for name, o in listed.items()}
    # Names and options are checked before anything is timed.
    why = {name: decoder_for(model, **decoder_arguments({"method": name, **how})).why for name, how in live.items()}
    pieces = texts(load_tokenizer(subject.target), own)
    given = GIVEN if own is None else None
    chosen = f"{AUTO}: {why[AUTO]}." if AUTO in why else ""
    return Bench(subject, model, drafter, live, pieces, options, device, lambda: None, given=given, chosen=chosen)


def _plan(run: Bench) -> Plan:
    options, kinds = run.options, len(run.pieces)

    def work(options: BenchOptions) -> float:
        return OVERHEAD * tokens_of(run.methods, options, kinds) / run.options.new

    quick = None if options == options.quick else work(options.quick)
    return planned(calls_of(run.methods, options, kinds), work(options), quick, run.once)


def calls_of(methods: Collection[str], options: BenchOptions, kinds: int) -> int:
    """The number of calls for our methods without plain decoding, on so many kinds of text."""
    each = (1 + options.repeats) * options.prompts
    others = len(PEERS) + len(options.files)
    raced = kinds * len(TEMPERATURES) * (each * (1 + len(methods) + others) + _tried(options))
    return raced + 2 * (1 + options.repeats) * _batched(methods, options)


def tokens_of(methods: Collection[str], options: BenchOptions, kinds: int) -> int:
    """The number of tokens that are generated; for the arguments see `calls_of`."""
    batches = 2 * (1 + options.repeats) * _batched(methods, options)
    return (calls_of(methods, options, kinds) + batches * (options.batch - 1)) * options.new


def _tried(options: BenchOptions) -> int:
    ways = sum(map(len, GRIDS.values())) + len(NGRAMS) * len(options.files)
    return tuning_calls(ways, min(SHARE, options.prompts))


def _batched(methods: Collection[str], options: BenchOptions) -> int:
    return 1 + len(set(BATCHED) & set(methods)) if options.batch else 0


def distinct(runs: Sequence[Run], n: int) -> float:
    """Share of an output's n-grams that differ from each other, averaged over outputs of at least `n` units."""
    rows = [row.unfold(0, n, 1) for run in runs for row in run.units if len(row) >= n]
    return sum(len(torch.unique(grams, dim=0)) / len(grams) for grams in rows) / len(rows) if rows else 0.0
