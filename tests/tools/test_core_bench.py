"""`tools.bench core` on stand-ins: every section runs over the library itself; what fails or is late is a line."""

import io
import json
import signal
import time
import weakref
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import typer

from mmspec.cli import boundary
from mmspec.core.decoder import Decoder
from mmspec.core.rules.synthetic import Synthetic, SyntheticOptions
from mmspec.testing.tiny_models import llama
from mmspec_text.plan.work import Machine, Work
from tools.bench.__main__ import build
from tools.bench.core import run as running
from tools.bench.core import subject as subject_module
from tools.bench.core.run import Race
from tools.bench.core.sections import Clock, Lines, TimeUp, alarm, run_section
from tools.bench.core.shape import Workload
from tools.bench.core.shapes import chosen_shapes
from tools.bench.core.steps import count, drafter, passes, rounds
from tools.bench.core.subject import SMALL, Subject

CPU = torch.device("cpu")
MACHINE = Machine(bandwidth=1e10, arithmetic=1e11)
SHAPES = ["llamagen-3b", "mamba2-2.7b", "llama-1b", "llama-8b", "qwen3-moe-30b-a3b", "nfd-310m"]
FREE = 1e9
"""Seconds of a deadline that nothing meets."""


def small_subject(name: str, lines: Lines, **sizes: Any) -> Subject:
    (shape,) = chosen_shapes(name)
    workload = shape.workload(CPU, torch.float32, small=True)
    return Subject(shape, workload, replace(SMALL, **sizes).of(shape), MACHINE, CPU, lines)


@pytest.fixture(scope="module")
def measured() -> list[dict[str, Any]]:
    """The lines of one shape."""
    lines = Lines()
    with torch.no_grad():
        running.run(chosen_shapes("llama-1b"), CPU, FREE, lines)
    return lines.found


def of(lines: list[dict[str, Any]], section: str) -> list[dict[str, Any]]:
    return [line for line in lines if line["section"] == section]


def test_nothing_of_a_small_shape_fails(measured: list[dict[str, Any]]) -> None:
    assert not [line for line in measured if {"failed", "stopped", "why"} & set(line)]
    assert measured[0]["section"] == "machine" and measured[-1]["section"] == "done"


def test_every_size_has_its_pass_and_its_round(measured: list[dict[str, Any]]) -> None:
    sizes = {(line["rows"], line["nodes"], line["context"]) for line in of(measured, "pass")}
    assert sizes == {(r, n, c) for r in SMALL.rows for n in SMALL.nodes for c in SMALL.contexts}
    sizes = {(line["rows"], line["nodes"], line["context"]) for line in of(measured, "round")}
    assert sizes == {(r, n, SMALL.contexts[0]) for r in SMALL.rows for n in SMALL.nodes}
    for line in (*of(measured, "pass"), *of(measured, "round")):
        assert line["ms"] > 0 and line["floor_ms"] > 0


def test_a_round_launches_more_than_its_pass(measured: list[dict[str, Any]]) -> None:
    for line in of(measured, "round"):
        assert line["outside_launches"] > 0 and 1 <= line["waits"] <= 5
        assert line["launches"] > line["outside_launches"]


def test_the_contestants_take_turns(measured: list[dict[str, Any]]) -> None:
    race = of(measured, "race")
    names = ["plain, default", "synthetic, 8 nodes, default", "synthetic, 16 nodes, default", "generate"]
    names.append("generate, prompt lookup")
    assert [line["contestant"] for line in race if line["repeat"] == 0] == names
    assert [line["contestant"] for line in race if line["repeat"] == 1] == [*names[1:], names[0]]
    by_name = {line["contestant"]: line for line in race}
    assert by_name["plain, default"]["acceptance_length"] == 1
    assert by_name["synthetic, 8 nodes, default"]["acceptance_length"] > 1.5
    assert by_name["generate"]["acceptance_length"] is None


def test_a_measured_model_is_freed_before_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU two of them would not fit."""
    (shape,) = chosen_shapes("llama-1b")
    seen: list[weakref.ref[Any]] = []
    make = type(shape).workload

    def watched(self: Any, *how: Any) -> Workload:
        assert all(model() is None for model in seen)
        made = make(self, *how)
        seen.append(weakref.ref(made.model))
        return made

    monkeypatch.setattr(type(shape), "workload", watched)
    monkeypatch.setattr(running, "SMALL", replace(SMALL, nodes=(1, 8), rows=(1,), contexts=(16,), repeats=1, races=1))
    lines = Lines()
    with torch.no_grad():
        running.run([shape, replace(shape, name="the same")], CPU, FREE, lines)
    assert len(seen) == 2 and not [line for line in lines.found if "failed" in line]


def test_a_contestant_that_cannot_be_made_harms_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = Lines()
    subject = small_subject("llama-1b", lines, races=1)
    monkeypatch.setitem(subject_module.VARIANTS, "wrong", {"shape": "round"})  # type: ignore[arg-type]
    monkeypatch.setattr(subject_module.Subject, "variants", ["default", "wrong"])
    with torch.no_grad():
        Race(subject).run(Clock.of(FREE))
    failed = [line["contestant"] for line in lines.of("race") if "failed" in line]
    assert failed == ["plain, wrong", "synthetic, 8 nodes, wrong", "synthetic, 16 nodes, wrong"]
    assert sum("ms_per_unit" in line for line in lines.of("race")) == 5


def test_all_six_shapes_are_listed_and_a_wrong_name_is_told() -> None:
    assert sorted(shape.name for shape in chosen_shapes(None)) == sorted(SHAPES)
    with pytest.raises(ValueError, match=r"no shape is called 'llama-1'.*'llama-1b'"):
        chosen_shapes("llama-8b,llama-1")


PUBLISHED = {"llama-1b": 1.24, "llama-8b": 8.03, "qwen3-moe-30b-a3b": 30.5, "llamagen-3b": 3.1, "mamba2-2.7b": 2.7}


@pytest.mark.parametrize("name", PUBLISHED)
def test_numbers_are_those_of_the_published_sizes(name: str) -> None:
    """On the meta device weights take no memory."""
    (shape,) = chosen_shapes(name)
    model = shape.workload(torch.device("meta"), torch.bfloat16, small=False).model
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert sum(p.numel() for p in model.parameters()) / 1e9 == pytest.approx(PUBLISHED[name], rel=0.02)


def test_the_floor_counts_what_a_pass_reads() -> None:
    model = llama()
    work = Workload(model, lambda rows, context: None, slot=100).work()
    table = model.get_input_embeddings().weight
    weights = sum(p.numel() for p in model.parameters()) - table.numel()
    assert work.read(1, 1, 0) == 4 * weights and work.operations == 2 * weights
    assert work.read(3, 8, 50) == 4 * weights + 3 * 50 * 400
    assert work.floor(Machine(1.0, 1e30), 1, 1, 0) == 4 * weights, "it is reading that takes the time"
    assert work.floor(Machine(1e30, 1.0), 2, 8, 0) == 16 * 2 * weights


def test_the_floor_of_experts_counts_those_that_are_chosen() -> None:
    work = Work(shared=10.0, routed=80.0, chosen=1 / 8, operations=1.0, slot=0.0)
    assert work.read(1, 1, 0) == 20
    assert 20 < work.read(1, 8, 0) < work.read(8, 8, 0) < 90


def test_a_node_is_some_positions_of_some_passes() -> None:
    """Under guidance a pass computes two positions a node; a frame's cells are computed in every step."""
    guided, framed = (small_subject(name, Lines()) for name in ("llamagen-3b", "nfd-310m"))
    assert guided.computed(1, 8) == 16 * guided.work.operations and guided.read(1, 1, 0) == guided.work.shared
    assert framed.workload.units == 4 and framed.computed(2, 1) == 4 * 8 * framed.work.operations
    assert framed.read(1, 1, 3) == 4 * (framed.work.shared + 3 * framed.work.slot)
    assert framed.floor(1, 1, 0) == 4 * framed.work.floor(MACHINE, 1, 4, 0)


def test_a_tree_has_as_many_nodes_as_asked_for_and_one_shape_takes_synthetic_acceptance() -> None:
    lines = Lines()
    subject = small_subject("llama-1b", lines)
    tree = drafter(subject, 16)
    assert tree.width(8) == 15 and 1 < tree.depth < 15
    decoder = subject.decoder(tree, Synthetic(SyntheticOptions(rate=1.0)), k=tree.depth)
    output = decoder.generate(subject.workload.prompt(2, 8), 20)
    assert output.report.width == 16 and set(output.report.sizes) == {16} and output.report.faults == 0
    assert output.report.acceptance_length > 3


def test_calls_that_do_not_fit_the_memory_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = Lines()
    subject = small_subject("llama-1b", lines)
    monkeypatch.setattr(Subject, "_free", lambda self: 1.3 * subject.work.memory(2, 32))
    assert list(subject.calls((32, 96))) == [(1, 32), (2, 32)]
    assert [(line["rows"], line["context"]) for line in lines.of("skipped")] == [(1, 96), (2, 96)]


def test_a_round_that_runs_out_of_memory_is_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = Lines()
    subject = small_subject("llama-1b", lines, nodes=(1, 8), rows=(1,))
    begin = Decoder.start

    def start(self: Decoder, *args: Any, **options: Any) -> Any:
        if self.k:
            raise torch.OutOfMemoryError("none left")
        return begin(self, *args, **options)

    monkeypatch.setattr(Decoder, "start", start)
    rounds(subject)
    assert [line["nodes"] for line in lines.of("round")] == [1]
    assert [(line["nodes"], line["why"]) for line in lines.of("skipped")] == [(8, "out of memory")]


def forever() -> None:
    """Work without an end that drops the first alarm, as finalisers do."""
    try:
        while True:
            time.sleep(0.001)
    except TimeUp:
        while True:
            time.sleep(0.001)


def test_a_slow_section_is_stopped_and_the_next_one_runs() -> None:
    lines = Lines()
    run_section(lines, "slow", 0.05, forever, shape="a")
    run_section(lines, "broken", 5, lambda: 1 / 0 and None, shape="a")
    run_section(lines, "late", 0.0, forever, shape="a")
    run_section(lines, "next", 5, lambda: lines.say("next", figure=1))
    slow, broken, late, following = lines.found
    assert slow["stopped"] == "its 0.1 s are over" and slow["shape"] == "a"
    assert broken["failed"] == "ZeroDivisionError: division by zero"
    assert late["stopped"] == "no time left" and following["figure"] == 1


def test_an_alarm_does_not_ring_after_its_block() -> None:
    with alarm(60):
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 0
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0
    with pytest.raises(TimeUp), alarm(0.01):
        time.sleep(10)


def test_time_that_is_left_goes_to_the_sections_behind() -> None:
    now = [0.0]
    clock = Clock(12.0, lambda: now[0])
    found = {}
    for name, own in clock.shares({"a": 1.0, "b": 1.0, "c": 2.0}):
        found[name] = own.left()
        now[0] += {"a": 1.0, "b": 9.0, "c": 0.0}[name]
    assert found == {"a": 3.0, "b": pytest.approx(11 / 3), "c": pytest.approx(2.0)}
    now[0] = 99.0
    assert [own.left() for _, own in clock.shares({"a": 1.0})] == [0.0]


def test_lines_are_flushed_at_once() -> None:
    class File(io.StringIO):
        flushed = ""

        def flush(self) -> None:
            self.flushed = self.getvalue()

    file = File()
    Lines(file).say("section", ms=1.5)
    line = json.loads(file.flushed)
    assert line["section"] == "section" and line["ms"] == 1.5 and line["t"] >= 0


def test_counts_on_a_cpu() -> None:
    x = torch.ones(4)
    found = count(lambda: (x + 1).view(2, 2).sum().item(), CPU)
    assert (found.launches - found.waits, found.waits) == (2, 1), "an addition, a sum, and the read itself"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("--shapes nope", "no shape is called 'nope'"),
        ("-o gone/x.jsonl", "there is no folder gone for x.jsonl"),
        ("-o taken", "taken is a folder"),
        ("--deadline nan", "--deadline"),
        ("--device banana", "no device 'banana'"),
    ],
)
def test_a_mistake_is_told_before_anything_is_measured(
    line: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("taken").mkdir()
    command: Any = typer.main.get_command(build())
    assert boundary.run(lambda: command(["core", *line.split()], standalone_mode=False)) == 2
    out, err = capsys.readouterr()
    assert says in err and err.count("\n") == 1 and out == ""


@pytest.mark.slow
def test_the_command_measures_all_shapes(tmp_path: Path) -> None:
    out = tmp_path / "core.jsonl"
    build()(["core", "--device", "cpu", "-o", str(out)], standalone_mode=False)
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    for name in SHAPES:
        own = [line for line in lines if line.get("shape") == name]
        faults = [line for line in own if {"failed", "stopped", "why"} & set(line)]
        sections = {line["section"] for line in own}
        assert sections == ({"shape", "round"} if name == "nfd-310m" else {"shape", "pass", "round", "race"})
        if name == "mamba2-2.7b":
            (fault,) = faults
            assert "assisted generation is not supported with stateful models" in fault["failed"]
        else:
            assert not faults


@pytest.mark.slow
def test_a_compiled_peer_takes_part_after_the_first_turns() -> None:
    lines = Lines()
    with torch.no_grad():
        subject = small_subject("llama-1b", lines, compiles=True, races=1)
        Race(subject).run(Clock.of(FREE))
    names = [line["contestant"] for line in lines.of("race")]
    assert [line["repeat"] for line in lines.of("race")] == [0] * 5 + [1] * 6
    assert "generate, compiled" in names[5:] and "generate, compiled" not in names[:5]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_small_shapes_on_a_gpu() -> None:
    """Counts come from the profiler there."""
    device, lines = torch.device("cuda"), Lines()
    with torch.no_grad():
        for shape in chosen_shapes("llama-1b,mamba2-2.7b,llamagen-3b"):
            workload = shape.workload(device, torch.bfloat16, small=True)
            subject = Subject(shape, workload, SMALL.of(shape), MACHINE, device, lines)
            for work in (partial(passes, subject), partial(rounds, subject)):
                work()
    assert not lines.of("skipped")
    assert all(line["launches"] > 20 and line["waits"] >= 1 for line in lines.of("round"))
