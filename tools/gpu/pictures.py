"""Pictures on the device: the shipped emoji, and LlamaGen-L and -3B by shape (random weights), window by window.

A process has a group of contestants (`--only large-32`: a model, and `loop`, `plain`, `default`, `eager` or a window).
They compile beside each other and are timed one at a time. The loop, plain and compiled, with a static cache, is what
somebody would run who has LlamaGen's weights and torch.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

import mmspec
from mmspec.api.build import decoder_for
from mmspec.bench.timing import called
from mmspec.core.report import Report
from mmspec.core.warp import Warp
from mmspec.kits.pictures.conditions import Condition
from mmspec_image.models.llamagen import LlamaGenTransformer
from tools.bench.image.loops import compiled_step, plain_loop
from tools.bench.image.loops import step as eager_step
from tools.bench.pictures.tasks import Task, tasks_of
from tools.gpu.common import HALF, MODES, Step

SIZES: Mapping[str, Mapping[str, Any]] = {
    "large": {"vocab_size": 16384, "grid": 24, "dim": 1024, "n_layer": 24, "n_head": 16},
    "3b": {"vocab_size": 16384, "grid": 24, "dim": 3200, "n_layer": 24, "n_head": 32},
}
SMALL = {"vocab_size": 64, "grid": 8, "dim": 32, "n_layer": 2, "n_head": 4, "multiple_of": 16, "num_classes": 5}
GUIDANCE = 2.0
Drawing = Callable[[Task], tuple[Tensor, Report | None]]


def emoji(step: Step) -> tuple[Any, list[Task]]:
    pipe = mmspec.Pipeline.from_pretrained("mmspec/emoji")
    pipe.to(step.device)
    return pipe.transformer, tasks_of(pipe, GUIDANCE, range(2), 0)


def random(step: Step, name: str) -> tuple[Any, list[Task]]:
    torch.manual_seed(0)
    with torch.device(step.device):
        model = LlamaGenTransformer(**(SMALL if step.dry else SIZES[name])).eval().requires_grad_(False)
    torch.nn.Module.to(model, HALF)  # diffusers' own warns of dtypes that this model does not have
    conditions = [Condition(torch.tensor([number], device=step.device)) for number in range(2)]
    return model, [Task([""], condition, (number,)) for number, condition in enumerate(conditions)]


def loop(step: Step, model: Any) -> Drawing:
    then = eager_step if step.dry else compiled_step()

    def draw(task: Task) -> tuple[Tensor, None]:
        generator = torch.Generator(step.device).manual_seed(task.seeds[0])
        how: dict[str, Any] = {"generator": generator, "static": True, "then": then}
        return plain_loop(model, task.condition, GUIDANCE, 1.0, **how), None

    return draw


def ours(model: Any, mode: str, method: str, **how: Any) -> Drawing:
    decoder = decoder_for(model, method, compile=MODES[mode], **how)

    def draw(task: Task) -> tuple[Tensor, Report]:
        warp = Warp(guidance=GUIDANCE)
        out = decoder.generate(task.condition, model.cells, seed=list(task.seeds), warp=warp)
        return torch.stack(list(out.units)), out.report

    return draw


def contestants(step: Step, model: Any, group: str) -> dict[str, Callable[[], Drawing]]:
    if group == "loop":
        return {"loop, compiled": partial(loop, step, model)}
    if group == "plain":
        return {"plain, compiled": partial(ours, model, "compiled", "plain")}
    if group in ("default", "eager"):
        found: dict[str, dict[str, Any]] = {"plain": {"method": "plain"}, "gs-sjd 32": {"method": "gs-sjd", "k": 32}}
        return {f"{label}, {group}": partial(ours, model, group, **how) for label, how in found.items()}
    return {f"gs-sjd {group}, compiled": partial(ours, model, "compiled", "gs-sjd", k=int(group))}


def timed(step: Step, about: Mapping[str, str], draw: Drawing, tasks: Sequence[Task]) -> None:
    """Two pictures, twice each."""
    where = str(step.device)
    runs = [[called(partial(draw, task), where) for _ in range(2)] for task in tasks]
    best = [min(seconds for seconds, _ in pair) for pair in runs]
    codes: list[list[Any]] = [[out[0] for _, out in pair] for pair in runs]
    reports: list[list[Any]] = [[out[1] for _, out in pair] for pair in runs]
    same = all(torch.equal(first, second) for first, second in codes)
    more: dict[str, Any] = {}
    if (report := reports[0][0]) is not None:
        rounds = [first.rounds for first, _ in reports]
        phases = {name: round(1e3 * s / report.rounds, 4) for name, s in report.seconds.items() if name != "prefill"}
        more = {"ms_per_round": round(1e3 * sum(best) / sum(rounds), 4), "rounds": rounds, "phases_ms": phases}
        more |= {
            "acceptance_length": round(report.acceptance_length, 3),
            "captured": report.compiled or report.recorded,
        }
    marks = [hash(tuple(first.flatten().tolist())) % 10**8 for first, _ in codes]
    step.say("time", **about, ms_per_picture=[round(1e3 * s, 2) for s in best], **more, codes=marks, twice_equal=same)


def ready_mark(step: Step, name: str, group: str) -> None:
    """Tell the lease, which counts, that nothing more is compiled here."""
    (step.arguments.out / f"ready-{name}-{group}").touch()


def draw(step: Step, name: str, group: str) -> None:
    model, tasks = emoji(step) if name == "emoji" else random(step, name)
    ready = dict[str, Drawing]()

    def prepare(label: str, make: Callable[[], Drawing]) -> None:
        way = make()
        first = called(partial(way, tasks[0]), str(step.device))[0]
        step.say("prepare", model=name, contestant=label, first_seconds=round(first, 1))
        ready[label] = way

    for label, make in contestants(step, model, group).items():
        step.section("prepare", partial(prepare, label, make), 20, keep=20, model=name, contestant=label)
    ready_mark(step, name, group)
    with step.alone():
        for label, way in ready.items():
            about = {"model": name, "contestant": label}
            step.section("time", partial(timed, step, about, way, tasks), 3, keep=2, **about)


def main() -> None:
    step = Step("pictures")
    for wanted in step.chosen(("large-default",)):
        name, _, group = wanted.rpartition("-")
        step.section("draw", partial(draw, step, name, group), 15, model=name, group=group)
        ready_mark(step, name, group)  # also after a failure


if __name__ == "__main__":
    with torch.no_grad():
        main()
