"""The benchmark of language models: all methods and transformers itself in turns, greedy and sampled."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

import mmspec
from mmspec.api.build import decoder_for
from mmspec.bench.generate import GenerateCall
from mmspec.bench.limits import best_speedup, best_tree, limits_of, loop_efficiency, measure_floor, pass_seconds
from mmspec.bench.machine import describe, versions
from mmspec.bench.memory import Footprint, footprint
from mmspec.bench.plan import Plan, planned
from mmspec.bench.race import Contestant, Run, race
from mmspec.bench.rows import peer_of, row_of
from mmspec.bench.tuning import tune
from mmspec.core.capabilities import WithNetwork
from mmspec.hosts.loading import load_model, load_tokenizer
from mmspec.kits.text.bench.batches import batch_rows
from mmspec.kits.text.bench.contestants import OurMethod, peers, stand_ins
from mmspec.kits.text.bench.plan import OVERHEAD, calls_of, tokens_of
from mmspec.kits.text.bench.repetition import distinct
from mmspec.kits.text.bench.settings import (
    GIVEN,
    READ,
    SHARE,
    TEMPERATURES,
    BenchOptions,
    Subject,
    apart,
    named,
    prompts,
    texts,
)
from mmspec.kits.text.bench.teacher_forcing import TeacherForced, teacher_force
from mmspec.report.result import PLAIN, Limits, Peer, Result, Row


@dataclass
class Bench:
    """One benchmark under way."""

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
    # The counts under teacher forcing, by kind of text and method
    forced: dict[str, dict[str, TeacherForced]] = field(default_factory=dict)
    given: int | None = GIVEN  # tokens of a prompt; None: the pieces are prompts

    def run(self) -> Result:
        """Run everything. Speed comes before teacher forcing and limits, which warm the machine up."""
        memory = self._memory() if self.options.whole else {}
        for kind, pieces in self.pieces.items():
            for temperature in TEMPERATURES:
                self._setting(named(kind, temperature), pieces, temperature, memory)
        if self.options.batch:
            kind, pieces = self._first
            self.rows += batch_rows(self._call(0.0), self.subject, self.methods, kind, pieces, self.options, self.tick)
        if self.options.whole:
            self.forced = {kind: self._led(pieces[: self.options.prompts]) for kind, pieces in self.pieces.items()}
        return Result(
            kind=self.subject.kind,
            model=self.subject.target,
            device=describe(self.device),
            versions=versions(),
            seed=self.options.seed,
            prompts={kind: min(self.options.prompts, len(pieces)) for kind, pieces in self.pieces.items()},
            rows=self.rows,
            peers=self.peers,
            limits=self._limits() if self.options.whole else Limits(),
            teacher_forced={
                kind: {method: round(led.acceptance_length, 4) for method, led in found.items()}
                for kind, found in self.forced.items()
            },
        )

    @property
    def _first(self) -> tuple[str, list[Tensor]]:
        """The first kind of text."""
        return next(iter(self.pieces.items()))

    @property
    def _task(self) -> dict[str, Tensor]:
        """One prompt."""
        return prompts(self._first[1], 1, self.device, self.given)[0]

    def _call(self, temperature: float) -> GenerateCall:
        return GenerateCall(self.model, self.options.new, temperature, self.options.seed)

    def once(self) -> Run:
        """Run one call of plain decoding."""
        return OurMethod(self._call(0.0), {"method": PLAIN})(self._task)

    def _setting(self, setting: str, pieces: list[Tensor], temperature: float, memory: Mapping[str, Footprint]) -> None:
        """Run one race. Stand-ins take part in the greedy setting only, because they measure the loop."""
        call, truth = self._call(temperature), dict[tuple[int, ...], list[int]]()
        racers: dict[str, Contestant] = {PLAIN: OurMethod(call, {"method": PLAIN}, truth)}
        racers |= {name: OurMethod(call, {"method": name, **options}) for name, options in self.methods.items()}
        bounds = self.options.whole and not temperature
        others = stand_ins(call, truth, self.options.k, self.options.rate) if bounds else {}
        tasks = prompts(pieces, self.options.prompts, self.device, self.given)
        ways = peers(call, self.drafter)
        tuned = {name: tune(way.ways, tasks[:SHARE], self.tick) for name, way in ways.items()}
        stock = {name: found.way for name, found in tuned.items()}
        tracks = race({**racers, **others, **stock}, tasks, self.options.repeats, optional=stock, tick=self.tick)
        for name in (*racers, *others):
            how: dict[str, Any] = {"setting": setting, "method": name}
            how |= {"quality": {"distinct_3": distinct(tracks[name].median, 3)}}
            options = self.subject.methods.get(name, {}) if name in racers else {"k": self.options.k}
            how |= {"options": options, "memory": memory.get(name), "mode": name if name in others else "real"}
            self.rows.append(row_of(tracks[name], tracks[PLAIN], **how))
        for name, way in ways.items():
            self.peers[f"{setting} / {name}"] = peer_of(tracks[name], setting, way.note, tuned=tuned[name])

    def _memory(self) -> dict[str, Footprint]:
        """The memory of models and of one call, by method."""
        task, call, found = self._task, self._call(0.0), {}
        for name, options in {PLAIN: {}, **self.methods}.items():
            models = [self.model, *([self.drafter] if "drafter" in options else [])]
            drafter = decoder_for(self.model, **apart({"method": name, **options})).drafter
            models += [drafter.network] if isinstance(drafter, WithNetwork) else []
            with mmspec.enable(self.model, **{"method": name, **options}):
                found[name] = footprint(lambda: call(task), models, self.device)
            self.tick()
        return found

    def _led(self, pieces: list[Tensor]) -> dict[str, TeacherForced]:
        """The counts of every method under teacher forcing on held-out text."""
        found = {}
        for name, options in self.methods.items():
            decoder = decoder_for(self.model, **apart({"method": name, **options}))
            found[name] = teacher_force(decoder, [piece[:, : GIVEN + READ].to(self.device) for piece in pieces], GIVEN)
            self.tick()
        return found

    def _limits(self) -> Limits:
        text = self._first[1][0][:, :GIVEN].to(self.device)
        target = decoder_for(self.model, PLAIN).target
        seconds = pass_seconds(target, text)
        small = pass_seconds(decoder_for(self.drafter, PLAIN).target, text, (1,))
        floor = measure_floor(float(_read(self.model)), 2.0 * _read(self.model) / 4, self.device)
        found = limits_of(seconds, floor)
        found.c[self.subject.drafter] = round(small[1] / seconds[1], 4)
        found.by_nodes.update(self.subject.by_nodes(target, text))
        for row in (row for row in self.rows if row.mode == "real" and row.batch == 1 and row.method != PLAIN):
            led, name = self.forced[row.setting.partition(",")[0]][row.method], f"{row.setting} / {row.method}"
            found.F_pipe[name] = round(loop_efficiency(row, seconds), 4)
            found.F_total[name] = round(row.speedup / best_speedup(led.by_rank, floor), 4)
        for kind, methods in self.forced.items():
            for method, led in methods.items():
                if len(led.by_rank) > 1:
                    best = best_tree(led.by_rank, round(led.nodes / led.rounds))
                    found.F_tree[f"{kind} / {method}"] = round(led.acceptance_length / best, 4)
        return found


def bench(
    subject: Subject,
    methods: list[str] | None,
    options: BenchOptions,
    device: str,
    progress: Callable[[Plan], Callable[[], None]],
    own: Sequence[str] | None = None,
) -> Result:
    """Load target and draft model, and run the benchmark.

    Args:
        subject: The subject.
        methods: The names of our methods; None for all that `subject` lists.
        options: The size of the benchmark.
        device: The device of the models.
        progress: Given the plan, returns the function that is called after each call.
        own: The user's own prompts, of which speed alone is measured; None: held-out texts.
    """
    options = options if own is None else replace(options, whole=False)
    model, drafter = load_model(subject.target, device), load_model(subject.drafter, device)
    wanted = [name for name in (subject.methods if methods is None else methods) if name != PLAIN]
    listed = {name: dict(subject.methods.get(name, {})) for name in wanted}
    live = {name: o | ({"drafter": drafter} if "drafter" in o else {}) for name, o in listed.items()}
    for name, how in live.items():  # names and options are checked before anything is timed
        decoder_for(model, **apart({"method": name, **how}))
    pieces = texts(load_tokenizer(subject.target), own)
    given = GIVEN if own is None else None
    run = Bench(subject, model, drafter, live, pieces, options, device, lambda: None, given=given)
    run.tick = progress(_plan(run))
    return run.run()


def _plan(run: Bench) -> Plan:
    """The plan of the benchmark, with times estimated from one call of plain decoding."""
    options, kinds = run.options, len(run.pieces)

    def work(options: BenchOptions) -> float:
        return OVERHEAD * tokens_of(run.methods, options, kinds) / run.options.new

    quick = work(options.quick) if options.whole else None
    return planned(calls_of(run.methods, options, kinds), work(options), quick, run.once)


def _read(model: Any) -> int:
    """Bytes of the weights that a pass reads: all except an input embedding that is not tied to the output layer."""
    table = model.get_input_embeddings().weight
    tied = model.get_output_embeddings() is not None and model.get_output_embeddings().weight is table
    return sum(p.numel() * p.element_size() for p in model.parameters() if tied or p is not table)
