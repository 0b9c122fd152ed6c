"""The benchmark of a model of pictures: plain decoding, our methods and others in turns; then what pictures show."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from mmspec.api.build import decoder_for
from mmspec.api.stored import Stored
from mmspec.bench.race import Plan, Run, planned, relay
from mmspec.bench.rows import peer_of, row_of
from mmspec.bench.timing import describe, versions
from mmspec.kits.pictures.bench import CAPTIONS
from mmspec.kits.pictures.command import pipeline
from mmspec.report.result import PLAIN, Peer, Row
from tools.bench.limits import loop_efficiency
from tools.bench.pictures.batches import REPEATS, batch_rows
from tools.bench.pictures.contestants import Other, OwnMethod, memory_of
from tools.bench.pictures.judge import AT_ONCE, Judge
from tools.bench.pictures.options import BenchOptions, shown_options
from tools.bench.pictures.quality import load_quality
from tools.bench.pictures.subject import Setting, Subject
from tools.bench.pictures.tasks import Task, groups, joined, tasks_of
from tools.report.whole import Limits, WholeResult


@dataclass
class PictureBench:
    """One benchmark under way."""

    subject: Subject  # what is measured
    judge: Judge  # the pipeline, and what judges its pictures
    methods: tuple[str, ...]  # names of our methods
    options: BenchOptions  # how much is drawn
    device: str  # the pipeline's
    name: str
    tick: Callable[[], None]  # called after every call
    rows: list[Row] = field(default_factory=list)
    peers: dict[str, Peer] = field(default_factory=dict)
    floor: dict[str, dict[str, list[float]]] = field(default_factory=dict)

    @torch.no_grad()
    def run(self) -> WholeResult:
        """Measure everything; seconds first, since what follows warms the machine up."""
        for setting in self.settings:
            self._setting(setting)
        (whole,) = (setting for setting in self.subject.settings if setting.whole)
        if self.options.batch:
            tasks = self.tasks(whole, range(self.options.batch))
            sampler, subject = self.subject.sampler(whole), self.subject
            rows = batch_rows(sampler, joined(tasks), tasks, self.batched(), whole.name, self.tick, subject.same)
            self.rows += [subject.row(row, None) for row in rows]
        drawn, window, unit = self.options.drawn, self.options.window, self.subject.unit
        how = (
            f"Every repeat has {self.options.prompts} captions of its own; {drawn} pictures a method. A window is "
            f"the {unit}s drafted per round; {window} of them where none is named. {self.subject.about}"
        )
        return WholeResult(
            kind=self.subject.kind,
            model=self.name,
            device=describe(self.device),
            versions=versions(),
            seed=self.options.seed,
            prompts={"captions": min(drawn, len(CAPTIONS))},
            rows=self.rows,
            peers=self.peers,
            limits=self._limits(whole) if self.options.whole else Limits(),
            unit=unit,
            piece="picture",
            how=how.rstrip(),
            floor=self.floor,
            notes=dict(self.subject.notes),
        )

    @property
    def settings(self) -> tuple[Setting, ...]:
        """The subject's; none is `whole` where only speed and pictures are measured."""
        return tuple(replace(setting, whole=setting.whole and self.options.whole) for setting in self.subject.settings)

    def once(self) -> Run:
        """One picture by plain decoding."""
        first = self.subject.settings[0]
        with torch.no_grad():
            return OwnMethod(self.subject.sampler(first))(self.tasks(first, [0])[0])

    def tasks(self, setting: Setting, places: Sequence[int], shift: int = 0) -> list[Task]:
        """One picture each: captions in turns, seeds that count up from `options.seed + shift`."""
        return tasks_of(self.judge.pipe, setting.guidance, places, self.options.seed + shift)

    def tried(self, setting: Setting) -> dict[str, dict[str, Any]]:
        """Our methods in a setting: options by name."""
        return self.subject.tried(self.methods, self.options.window, setting.whole)

    def batched(self) -> dict[str, dict[str, Any]]:
        """Our methods on a batch: options by name."""
        tried = self.subject.tried(self.methods, self.options.window, True)
        return {name: options for name, options in tried.items() if name in self.subject.batched}

    def calls(self) -> int:
        """How often `tick` will be called."""
        drawn, total = self.options.drawn, 0
        for setting in self.settings:
            plain = OwnMethod(self.subject.sampler(setting))
            contestants = 1 + len(self.tried(setting)) + len(self.subject.others(setting, plain, self.options.window))
            total += contestants * (1 + drawn) + self.options.floors * -(-drawn // AT_ONCE)
            total += (1 + len(self.methods)) * setting.whole
        return total + (2 * (1 + len(self.batched())) * (1 + REPEATS) if self.options.batch else 0)

    def plan(self) -> Plan:
        """What is ahead, from one picture of plain decoding."""
        quick = replace(self, options=self.options.quick).calls() if self.options.whole else None
        return planned(self.calls(), self.calls(), quick, self.once)

    def _setting(self, setting: Setting) -> None:
        """One relay, then what its pictures show."""
        sampler, methods = self.subject.sampler(setting), self.tried(setting)
        plain = OwnMethod(sampler, truth={})
        ours: dict[str, OwnMethod] = {PLAIN: plain} | {
            name: OwnMethod(sampler, options) for name, options in methods.items()
        }
        others = self.subject.others(setting, plain, self.options.window)
        watched = {name: ours[name] for name in (PLAIN, *self.methods)} if setting.whole else {}
        memory = memory_of(watched, self.tasks(setting, [0])[0], self.device, self.tick)
        drawn = self.options.drawn
        legs = groups(self.tasks(setting, range(drawn)), self.options.prompts)
        loops = {name: other.loop for name, other in others.items() if other.loop is not None}
        contestants: dict[str, Any] = ours | {name: other.run for name, other in others.items()}
        tracks = relay(contestants, legs, legs[0][:1], optional=loops, tick=self.tick)
        captions = [caption for leg in legs for task in leg for caption in task.captions]
        for name in (*ours, *(name for name in others if name not in loops)):
            other = others.get(name) or Other(ours[name], options=shown_options(methods.get(name, {})))
            own, base = tracks[name], tracks[PLAIN]
            judged = self.judge.numbers(own.every, base.every, captions) if other.mode == "real" else None
            how: dict[str, Any] = {
                "setting": setting.name,
                "method": name,
                "mode": other.mode,
                "memory": memory.get(name),
            }
            row = row_of(own, base, **how, quality=judged, options=other.options, every=True)
            row = self.subject.row(row, own)
            self.rows.append(row if other.exactness is None else replace(row, exactness=other.exactness))
        for name, note in loops.items():
            self.peers[f"{setting.name} / {name}"] = peer_of(tracks[name], setting.name, note, ours=True)
        turns = range(1, self.options.floors + 1)
        sets = [self.tasks(setting, range(drawn), shift=turn * drawn) for turn in turns]
        self.floor[setting.name] = self.judge.floor(OwnMethod(sampler), sets, self.tick)

    def _limits(self, setting: Setting) -> Limits:
        """Limits of passes of one picture, and how much of them our methods' loops leave."""
        condition = self.tasks(setting, [0])[0].condition
        most = max(int(nodes) for row in self.rows for nodes in row.passes_by_nodes)
        limits, seconds = self.subject.limits(setting, condition, most, self.device)
        for row in self.rows:
            if (row.setting, row.batch) == (setting.name, 1) and row.method in self.tried(setting):
                limits.F_pipe[f"{row.setting} / {row.method}"] = round(loop_efficiency(row, seconds), 4)
        return limits


def bench_pictures(
    subject_of: Callable[[Any], Subject],
    methods: Sequence[str] | None,
    options: BenchOptions,
    device: str,
    progress: Callable[[Plan], Callable[[], None]],
    model: str,
) -> WholeResult:
    """Load a pipeline and run.

    `subject_of` makes the subject of the transformer, and refuses one that it cannot measure. `methods` are ours that
    are tried, None for the subject's. `progress` takes the plan and returns what is called after each call. `model` is
    a name or a folder of a pipeline with `quality.safetensors` in it.

    Raises:
        ValueError: There is no such model, method or device, or the model cannot be measured.
    """
    pipe = pipeline(model, device, method=PLAIN)
    pipe.set_progress_bar_config(disable=True)
    subject = subject_of(pipe.transformer)
    chosen = tuple(name for name in (subject.methods if methods is None else methods) if name != PLAIN)
    for name in chosen:  # checked before anything is timed
        decoder_for(pipe.transformer, name, k=options.window)
    stored = Stored.named(model)
    assert stored is not None, "a pipeline that is not on this machine is refused when it is loaded"
    judge = Judge(pipe, load_quality(stored.folder))
    bench = PictureBench(subject, judge, chosen, options, device, model, lambda: None)
    bench.tick = progress(bench.plan())
    return bench.run()
