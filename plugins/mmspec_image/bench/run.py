"""`mmspec bench image`: windows, plain decoding and plain loops, interleaved; and what the pictures are like."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from mmspec.api.build import decoder_for
from mmspec.bench.limits import NODES, limits_of, loop_efficiency, measure_floor, pass_seconds
from mmspec.bench.machine import describe, versions
from mmspec.bench.plan import Plan, planned
from mmspec.bench.race import Run, relay
from mmspec.bench.rows import peer_of, row_of
from mmspec.hosts.loading import locate_pipeline
from mmspec.kits.pictures.bench.batches import REPEATS as REPEATS_OF_BATCHES
from mmspec.kits.pictures.bench.batches import batch_rows
from mmspec.kits.pictures.bench.captions import CAPTIONS
from mmspec.kits.pictures.bench.contestants import Call, Knowing, Ours, memory_of
from mmspec.kits.pictures.bench.judge import AT_ONCE, Judge
from mmspec.kits.pictures.bench.options import BenchOptions, said, windowed
from mmspec.kits.pictures.bench.tasks import Task, joined, parts, tasks_of
from mmspec.kits.pictures.command import pipeline
from mmspec.kits.pictures.quality import load_quality
from mmspec.report.result import PLAIN, Limits, Peer, Result, Row
from mmspec_image.bench.loops import LOOPS, loops
from mmspec_image.bench.settings import METHODS, NARROW, NOTES, SETTINGS, Setting, methods_of
from mmspec_image.targets.llamagen import LlamaGenTarget


@dataclass
class Bench:
    """One benchmark under way.

    Attributes:
        judge: The pipeline, and what judges its pictures.
        methods: Names of our methods.
        options: How much.
        device: Where.
        name: The model's.
        tick: Called after every call.
    """

    judge: Judge
    methods: tuple[str, ...]
    options: BenchOptions
    device: str
    name: str
    tick: Callable[[], None]
    rows: list[Row] = field(default_factory=list)
    peers: dict[str, Peer] = field(default_factory=dict)
    floor: dict[str, dict[str, list[float]]] = field(default_factory=dict)

    @torch.no_grad()
    def run(self) -> Result:
        """Everything; seconds first, since what follows warms the machine up."""
        for setting in self.settings:
            self._setting(setting)
        (whole,) = (setting for setting in SETTINGS if setting.whole)
        if self.options.batch:
            tasks = self.tasks(whole, range(self.options.batch))
            tried = methods_of(self.methods, self.options, sweep=True)
            kept = {name: how for name, how in tried.items() if name in self.batched}
            self.rows += batch_rows(self._call(whole), joined(tasks), tasks, kept, whole.name, self.tick)
        drawn, window = self.options.drawn, self.options.window
        return Result(
            kind="image",
            model=self.name,
            device=describe(self.device),
            versions=versions(),
            seed=self.options.seed,
            prompts={"captions": min(drawn, len(CAPTIONS))},
            rows=self.rows,
            peers=self.peers,
            limits=self._limits(whole) if self.options.whole else Limits(),
            unit="code",
            piece="picture",
            how=f"Every repeat has {self.options.prompts} captions of its own; {drawn} pictures a method. A window is "
            f"the codes drafted per round; {window} of them where none is named.",
            floor=self.floor,
            notes=dict(NOTES),
        )

    @property
    def settings(self) -> tuple[Setting, ...]:
        """How codes are drawn; nowhere more than speed and looks are measured where that is enough."""
        return tuple(replace(setting, whole=setting.whole and self.options.whole) for setting in SETTINGS)

    def once(self) -> Run:
        """One picture by plain decoding."""
        with torch.no_grad():
            return Ours(self._call(SETTINGS[0]))(self.tasks(SETTINGS[0], [0])[0])

    @property
    def batched(self) -> tuple[str, ...]:
        """Names of what is tried on a batch."""
        return "gs-sjd", windowed("gs-sjd", NARROW)

    def tasks(self, setting: Setting, places: Sequence[int], shift: int = 0) -> list[Task]:
        """One picture each: captions in turns, seeds that count up from `options.seed + shift`."""
        return tasks_of(self.judge.pipe, setting.guidance, places, self.options.seed + shift)

    def _call(self, setting: Setting) -> Call:
        return Call(self.judge.pipe.transformer, setting.warp)

    def _setting(self, setting: Setting) -> None:
        """One relay, then what its pictures look like."""
        call = self._call(setting)
        methods = methods_of(self.methods, self.options, setting.whole)
        plain = Ours(call, truth={})
        ours: dict[str, Any] = {PLAIN: plain} | {name: Ours(call, how) for name, how in methods.items()}
        others = {"oracle": Knowing(plain, self.options.window)} if setting.whole else {}
        plainly = loops(call, setting.guidance, setting.temperature)
        alike = {name: ours[name] for name in (PLAIN, *self.methods)} if setting.whole else {}
        memory = memory_of(alike, self.tasks(setting, [0])[0], self.device, self.tick)
        drawn = self.options.drawn
        legs = parts(self.tasks(setting, range(drawn)), self.options.prompts)
        tracks = relay({PLAIN: plain, **others, **ours, **plainly}, legs, legs[0][:1], optional=plainly, tick=self.tick)
        captions = [caption for leg in legs for task in leg for caption in task.captions]
        for name in (*ours, *others):
            how: dict[str, Any] = {"setting": setting.name, "method": name, "mode": "real" if name in ours else name}
            how |= {"options": said(methods.get(name, {})), "memory": memory.get(name), "every": True}
            if name in ours:
                how["quality"] = self.judge.numbers(tracks[name].every, tracks[PLAIN].every, captions)
            self.rows.append(row_of(tracks[name], tracks[PLAIN], **how))
        for name, loop in plainly.items():
            self.peers[f"{setting.name} / {name}"] = peer_of(tracks[name], setting.name, loop.note, ours=True)
        turns = range(1, self.options.floors + 1)
        sets = [self.tasks(setting, range(drawn), shift=turn * drawn) for turn in turns]
        self.floor[setting.name] = self.judge.floor(Ours(call), sets, self.tick)

    def _limits(self, setting: Setting) -> Limits:
        """Of passes of one picture."""
        model = self.judge.pipe.transformer
        condition = self.tasks(setting, [0])[0].condition
        most = max(int(nodes) for row in self.rows for nodes in row.passes_by_nodes)
        sizes = [n for n in (*NODES, 48, 64) if n < most] + [most]
        seconds = pass_seconds(LlamaGenTarget(model), condition, sizes)
        read = sum(layer.weight.numel() * layer.weight.element_size() for layer in _matrices(model))
        floor = measure_floor(float(read), (1 + setting.guided) * 2.0 * read / 4, self.device)
        found = limits_of(seconds, floor)
        for row in self.rows:
            if (row.setting, row.mode, row.batch) == (setting.name, "real", 1) and row.method != PLAIN:
                found.F_pipe[f"{row.setting} / {row.method}"] = round(loop_efficiency(row, seconds), 4)
        return found


def bench_image(
    methods: list[str] | None,
    options: BenchOptions,
    device: str,
    progress: Callable[[Plan], Callable[[], None]],
    model: str,
) -> Result:
    """Load a pipeline and run.

    Args:
        methods: Which of ours; None for all.
        options: How much.
        device: Where.
        progress: Given what is ahead, returns what is called after each call.
        model: A name or a folder of a pipeline with `quality.safetensors` in it.

    Raises:
        ValueError: There is no such model, method or device.
    """
    loaded = pipeline(model, device, method=PLAIN)
    loaded.set_progress_bar_config(disable=True)
    chosen = tuple(name for name in (METHODS if methods is None else methods) if name != PLAIN)
    for name in chosen:  # checked before anything is timed
        decoder_for(loaded.transformer, name, k=options.window)
    folder = locate_pipeline(model)
    assert folder is not None, "a pipeline that is not on this machine is refused when it is loaded"
    judge = Judge(loaded, load_quality(folder))
    run = Bench(judge, chosen, options, device, model, lambda: None)
    run.tick = progress(_plan(run))
    return run.run()


def _plan(run: Bench) -> Plan:
    """What is ahead, from one picture of plain decoding."""
    quick = _calls(replace(run, options=run.options.quick)) if run.options.whole else None
    return planned(_calls(run), _calls(run), quick, run.once)


def _matrices(model: Any) -> list[torch.nn.Linear]:
    """What every pass over codes reads: all layers but the caption's."""
    caption = set(model.cls_embedding.modules())
    return [part for part in model.modules() if isinstance(part, torch.nn.Linear) and part not in caption]


def _calls(run: Bench) -> int:
    """How often `tick` will be called."""
    drawn, total = run.options.drawn, 0
    for setting in run.settings:
        ours = 1 + len(methods_of(run.methods, run.options, setting.whole))
        total += (ours + len(LOOPS) + setting.whole) * (1 + drawn) + run.options.floors * -(-drawn // AT_ONCE)
        total += (1 + len(run.methods)) * setting.whole
    tried = set(run.batched) & set(methods_of(run.methods, run.options, sweep=True))
    return total + (2 * (1 + len(tried)) * (1 + REPEATS_OF_BATCHES) if run.options.batch else 0)
