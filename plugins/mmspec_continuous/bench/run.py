"""`mmspec bench continuous`: windows, plain decoding and honest baselines, interleaved; and what the pictures are like.

The clock is read three times: for the call, for the transformer's passes, and for the denoising head alone.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from mmspec.api.build import decoder_for
from mmspec.bench.limits import NODES, limits_of, loop_efficiency, measure_floor, pass_seconds
from mmspec.bench.machine import describe, versions
from mmspec.bench.plan import Plan, planned
from mmspec.bench.race import Run, relay
from mmspec.bench.rows import row_of
from mmspec.hosts.loading import locate_pipeline
from mmspec.kits.pictures.bench.batches import REPEATS as REPEATS_OF_BATCHES
from mmspec.kits.pictures.bench.batches import batch_rows
from mmspec.kits.pictures.bench.captions import CAPTIONS
from mmspec.kits.pictures.bench.contestants import Ours, memory_of
from mmspec.kits.pictures.bench.judge import AT_ONCE, Judge
from mmspec.kits.pictures.bench.options import BenchOptions, said, tried, windowed
from mmspec.kits.pictures.bench.tasks import Task, joined, parts, tasks_of
from mmspec.kits.pictures.command import pipeline
from mmspec.kits.pictures.quality import load_quality
from mmspec.report.result import PLAIN, Limits, Result, Row
from mmspec_continuous.bench.baselines import baselines
from mmspec_continuous.bench.head import HeadCall, Whole, split
from mmspec_continuous.bench.settings import (
    NARROW,
    NOTES,
    SAME,
    SETTINGS,
    SWEPT,
    TEMPERED,
    WINDOWS,
    Setting,
    methods_for,
)
from mmspec_continuous.models.continuous_ar import CausalContinuousAR
from mmspec_continuous.models.denoiser import Denoiser
from mmspec_continuous.targets.continuous import ContinuousTarget


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
    floor: dict[str, dict[str, list[float]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.baselines = baselines(self.model)

    @torch.no_grad()
    def run(self) -> Result:
        """Everything; seconds first, since what follows warms the machine up."""
        for setting in self.settings:
            self._setting(setting)
        (whole,) = (setting for setting in SETTINGS if setting.whole)
        if self.options.batch:
            self._batch(whole)
        drawn, window = self.options.drawn, self.options.window
        return Result(
            kind="continuous",
            model=self.name,
            device=describe(self.device),
            versions=versions(),
            seed=self.options.seed,
            prompts={"captions": min(drawn, len(CAPTIONS))},
            rows=self.rows,
            peers={},
            limits=self._limits(whole) if self.options.whole else Limits(),
            unit="token",
            piece="picture",
            how=f"Every repeat has {self.options.prompts} captions of its own; {drawn} pictures a method. A window is "
            f"the tokens drafted per round; {window} of them where none is named. The head has "
            f"{self.model.config.steps} steps and sigma_0 = {self.model.config.sigma_0:g}. {TEMPERED}: the test of "
            "continuous speculative decoding (arXiv 2411.11925) over the same windows.",
            floor=self.floor,
            notes=dict(NOTES),
        )

    @property
    def settings(self) -> tuple[Setting, ...]:
        """How tokens are drawn; nowhere more than speed and looks are measured where that is enough."""
        return tuple(replace(setting, whole=setting.whole and self.options.whole) for setting in SETTINGS)

    def once(self) -> Run:
        """One picture by plain decoding."""
        with torch.no_grad():
            return Ours(HeadCall(self.model))(self.tasks(SETTINGS[0], [0])[0])

    @property
    def model(self) -> CausalContinuousAR:
        """The transformer."""
        return self.judge.pipe.transformer

    def tasks(self, setting: Setting, places: Sequence[int], shift: int = 0) -> list[Task]:
        """One picture each: captions in turns, seeds that count up from `options.seed + shift`."""
        return tasks_of(self.judge.pipe, setting.guidance, places, self.options.seed + shift)

    def tried(self, whole: bool) -> dict[str, dict[str, Any]]:
        """Our methods; where the whole is asked for, one of them at every window, and under the published test."""
        made = tried(self.methods, self.options.window, SWEPT if whole else None, WINDOWS)
        if whole and SWEPT in made:
            made[TEMPERED] = {**made[SWEPT], "rule": "tempered"}
        return made

    def batched(self) -> dict[str, dict[str, Any]]:
        """What is tried on a batch."""
        return {name: how for name, how in self.tried(True).items() if name in (SWEPT, windowed(SWEPT, NARROW))}

    def _setting(self, setting: Setting) -> None:
        """One relay, then what its pictures look like."""
        call, methods = HeadCall(self.model), self.tried(setting.whole)
        ours = {PLAIN: Ours(call)} | {name: Ours(call, how) for name, how in methods.items()}
        others = self.baselines if setting.whole else {}
        alike = {name: ours[name] for name in (PLAIN, *self.methods)} if setting.whole else {}
        memory = memory_of(alike, self.tasks(setting, [0])[0], self.device, self.tick)
        drawn = self.options.drawn
        legs = parts(self.tasks(setting, range(drawn)), self.options.prompts)
        besides = {name: Ours(HeadCall(other.model)) for name, other in others.items()}
        tracks = relay({**ours, **besides}, legs, legs[0][:1], tick=self.tick)
        captions = [caption for leg in legs for task in leg for caption in task.captions]
        for name, track in tracks.items():
            quality = split(track.every) | self.judge.numbers(track.every, tracks[PLAIN].every, captions)
            options = others[name].settings if name in others else said(methods.get(name, {}))
            how = {"setting": setting.name, "method": name, "memory": memory.get(name), "every": True}
            row = _of_a_distribution(row_of(track, tracks[PLAIN], **how, quality=quality, options=options))
            self.rows.append(replace(row, exactness="lossy") if name in others else row)
        turns = range(1, self.options.floors + 1)
        sets = [self.tasks(setting, range(drawn), shift=turn * drawn) for turn in turns]
        self.floor[setting.name] = self.judge.floor(Ours(call), sets, self.tick)

    def _batch(self, setting: Setting) -> None:
        """Several pictures at a time."""
        tasks = self.tasks(setting, range(self.options.batch))
        call = HeadCall(self.model)
        made = batch_rows(call, joined(tasks), tasks, self.batched(), setting.name, self.tick, SAME)
        self.rows += [_of_a_distribution(row) for row in made]

    def _limits(self, setting: Setting) -> Limits:
        """Of passes of one picture, the head's draws included."""
        condition = self.tasks(setting, [0])[0].condition
        most = max(int(nodes) for row in self.rows for nodes in row.passes_by_nodes)
        sizes = [n for n in NODES if n < most] + [most]
        target = ContinuousTarget(self.model)
        seconds = pass_seconds(Whole(target), condition, sizes)
        alone = pass_seconds(target, condition, (1, most))
        once, again = _read(self.model)
        passed = once + self.model.config.steps * again  # bytes that one node's arithmetic goes through
        floor = measure_floor(float(once + again), (1 + (setting.guidance != 1)) * 2.0 * passed / 4, self.device)
        measured = {
            "seconds_of_one_node_without_the_head": alone[1],
            f"seconds_of_{most}_nodes": seconds[most],
            f"seconds_of_{most}_nodes_without_the_head": alone[most],
        }
        found = limits_of(seconds, floor, **measured)
        for row in self.rows:
            if (row.setting, row.batch) == (setting.name, 1) and row.method not in (PLAIN, *self.baselines):
                found.F_pipe[f"{row.setting} / {row.method}"] = round(loop_efficiency(row, seconds), 4)
        return found


def bench_continuous(
    methods: list[str] | None,
    options: BenchOptions,
    device: str,
    progress: Callable[[Plan], Callable[[], None]],
    model: str,
) -> Result:
    """Load a pipeline and run.

    Args:
        methods: Which of ours; None for all that need no draft model.
        options: How much.
        device: Where.
        progress: Given what is ahead, returns what is called after each call.
        model: A name or a folder of a pipeline with `quality.safetensors` in it.

    Raises:
        ValueError: There is no such model, method or device, or the model has no denoising head or no null caption.
    """
    loaded = pipeline(model, device, method=PLAIN)
    loaded.set_progress_bar_config(disable=True)
    transformer = loaded.transformer
    denoises = isinstance(getattr(transformer, "token_head", None), Denoiser)
    if not denoises or not transformer.config.null_caption:
        raise ValueError(f"{model} cannot be measured: a denoising head and a null caption, for guidance, are needed")
    chosen = tuple(name for name in (methods_for(transformer) if methods is None else methods) if name != PLAIN)
    for name in chosen:  # checked before anything is timed
        decoder_for(transformer, name, k=options.window)
    folder = locate_pipeline(model)
    assert folder is not None, "a pipeline that is not on this machine is refused when it is loaded"
    run = Bench(Judge(loaded, load_quality(folder)), chosen, options, device, model, lambda: None)
    run.tick = progress(_plan(run))
    return run.run()


def _plan(run: Bench) -> Plan:
    """What is ahead, from one picture of plain decoding."""
    quick = _calls(replace(run, options=run.options.quick)) if run.options.whole else None
    return planned(_calls(run), _calls(run), quick, run.once)


def _of_a_distribution(row: Row) -> Row:
    """Without the share of pictures that are plain decoding's: what is promised is the distribution."""
    return replace(row, quality={name: value for name, value in row.quality.items() if name != "same_as_plain"})


def _read(model: CausalContinuousAR) -> tuple[int, int]:
    """Bytes of weights that every pass reads: once a token, and once a denoising step."""
    again = [part for name, part in model.token_head.named_children() if name not in ("told", "modulation")]
    caption = set(model.cls_embedding.modules())
    steps = {layer for part in again for layer in part.modules()}
    layers = [part for part in model.modules() if isinstance(part, torch.nn.Linear) and part not in caption]
    size = {layer: layer.weight.numel() * layer.weight.element_size() for layer in layers}
    return sum(n for part, n in size.items() if part not in steps), sum(n for p, n in size.items() if p in steps)


def _calls(run: Bench) -> int:
    """How often `tick` will be called."""
    drawn, total = run.options.drawn, 0
    for setting in run.settings:
        contestants = 1 + len(run.tried(setting.whole)) + len(run.baselines) * setting.whole
        total += contestants * (1 + drawn) + run.options.floors * -(-drawn // AT_ONCE)
        total += (1 + len(run.methods)) * setting.whole
    return total + (2 * (1 + len(run.batched())) * (1 + REPEATS_OF_BATCHES) if run.options.batch else 0)
