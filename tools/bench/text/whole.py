"""The benchmark of language models whole: beside speed, memory, bounds of the loop, teacher forcing, and limits."""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

from torch import Tensor

import mmspec
from mmspec.api.build import decoder_for
from mmspec.bench.generate import GenerateCall
from mmspec.bench.methods import decoder_arguments
from mmspec.bench.race import Plan, planned
from mmspec.bench.rows import Footprint
from mmspec.bench.timing import pass_seconds
from mmspec.core.capabilities import WithNetwork
from mmspec.core.policies import Fixed
from mmspec.kits.text.bench.contestants import OurMethod
from mmspec.kits.text.bench.run import OVERHEAD, Bench, Truth, calls_of, prepared, tokens_of
from mmspec.kits.text.bench.settings import GIVEN, BenchOptions, Subject
from mmspec.report.result import PLAIN
from tools.bench.limits import best_speedup, best_tree, limits_of, loop_efficiency, measure_floor
from tools.bench.memory import footprint
from tools.bench.stand_ins import Oracle, Parrot
from tools.bench.text.teacher_forcing import TeacherForced, teacher_force
from tools.report.whole import Limits, WholeResult

READ = 240
"""Tokens of a text under teacher forcing, behind the prompt."""
DRAFTED, RATE = 6, 0.7
"""Units drafted by stand-ins, and the synthetic acceptance rate."""
STAND_INS = ("oracle", "synthetic", "empty")
Forced = dict[str, dict[str, TeacherForced]]
"""The counts under teacher forcing, by kind of text and method."""
ByNodes = Callable[[Any, Tensor], dict[str, dict[str, float]]]
"""Returns further numbers of passes, as in `Limits`, for the target and a prompt `[1, length]`."""


def bench(
    subject: Subject,
    methods: list[str] | None,
    options: BenchOptions,
    device: str,
    progress: Callable[[Plan], Callable[[], None]],
    own: Sequence[str] | None = None,
    by_nodes: ByNodes = lambda target, prompt: {},
) -> WholeResult:
    """Run everything: speed before teacher forcing and limits, which warm the machine up.

    Args:
        subject: The subject.
        methods: The names of our methods; None for all that `subject` lists.
        options: The size of the benchmark.
        device: The device of the models.
        progress: Given the plan, returns the function that is called after each call.
        own: None: the whole is measured on held-out texts.
        by_nodes: Measures passes in further ways.

    Raises:
        ValueError: There are prompts of the user's own, of which `mmspec bench` measures speed.
    """
    if own is not None:
        raise ValueError("teacher forcing reads held-out texts: --prompts is their number here")
    run = prepared(subject, methods, options, device)
    run.tick = progress(_plan(run))
    run.memory, run.bounds = _memory(run), stand_ins
    result = run.run()
    forced = {kind: _forced(run, pieces[: options.prompts]) for kind, pieces in run.pieces.items()}
    lengths = {
        kind: {method: round(led.acceptance_length, 4) for method, led in found.items()}
        for kind, found in forced.items()
    }
    return WholeResult(**vars(result), limits=_limits(run, forced, by_nodes), teacher_forced=lengths)


def stand_ins(call: GenerateCall, truth: Truth) -> Mapping[str, OurMethod]:
    """Contestants that bound the loop: an oracle, synthetic acceptance, and rounds without drafts.

    They take part in greedy settings only, because they measure the loop.

    Args:
        call: How `generate` is called.
        truth: Prompt and plain output by prompt, for the oracle.
    """
    if call.temperature:
        return {}
    oracle, synthetic, empty = STAND_INS
    return {
        oracle: OurMethod(call, {"drafter": Oracle(truth), "k": DRAFTED}),
        synthetic: OurMethod(call, {"drafter": Parrot(), "rule": "synthetic", "rate": RATE, "k": DRAFTED}),
        empty: OurMethod(call, {"method": "prompt-lookup", "k": DRAFTED, "policy": Fixed(0)}),
    }


def _plan(run: Bench) -> Plan:
    """The plan, with times estimated from one call of plain decoding."""
    options, kinds, methods = run.options, len(run.pieces), len(run.methods)
    calls = calls_of(run.methods, options, kinds) + _bounded(options, kinds) + kinds * methods + 1 + methods
    return planned(calls, OVERHEAD * whole_tokens(run.methods, options, kinds) / options.new, None, run.once)


def whole_tokens(methods: Collection[str], options: BenchOptions, kinds: int) -> int:
    """The number of tokens that are generated, or read under teacher forcing; arguments as in `tokens_of`."""
    generated = _bounded(options, kinds) + 2 * (1 + len(methods))
    read = kinds * len(methods) * options.prompts * READ
    return tokens_of(methods, options, kinds) + generated * options.new + read


def _bounded(options: BenchOptions, kinds: int) -> int:
    """The number of calls of stand-ins."""
    return kinds * (1 + options.repeats) * options.prompts * len(STAND_INS)


def _memory(run: Bench) -> dict[str, Footprint]:
    """The memory of models and of one call, by method."""
    task, call, found = run.task, run.call(0.0), {}
    for name, options in {PLAIN: {}, **run.methods}.items():
        models = [run.model, *([run.drafter] if "drafter" in options else [])]
        drafter = decoder_for(run.model, **decoder_arguments({"method": name, **options})).drafter
        models += [drafter.network] if isinstance(drafter, WithNetwork) else []
        with mmspec.enable(run.model, **{"method": name, **options}):
            found[name] = footprint(partial(call, task), models, run.device)
        run.tick()
    return found


def _forced(run: Bench, pieces: Sequence[Tensor]) -> dict[str, TeacherForced]:
    """The counts of every method under teacher forcing on held-out text."""
    found = {}
    for name, options in run.methods.items():
        decoder = decoder_for(run.model, **decoder_arguments({"method": name, **options}))
        found[name] = teacher_force(decoder, [piece[:, : GIVEN + READ].to(run.device) for piece in pieces], GIVEN)
        run.tick()
    return found


def _limits(run: Bench, forced: Forced, by_nodes: ByNodes) -> Limits:
    text = run.first[1][0][:, :GIVEN].to(run.device)
    target = decoder_for(run.model, PLAIN).target
    seconds = pass_seconds(target, text)
    small = pass_seconds(decoder_for(run.drafter, PLAIN).target, text, (1,))
    floor = measure_floor(float(_read(run.model)), 2.0 * _read(run.model) / 4, run.device)
    found = limits_of(seconds, floor)
    found.c[run.subject.drafter] = round(small[1] / seconds[1], 4)
    found.by_nodes.update(by_nodes(target, text))
    for row in (row for row in run.rows if row.mode == "real" and row.batch == 1 and row.method != PLAIN):
        led, name = forced[row.setting.partition(",")[0]][row.method], f"{row.setting} / {row.method}"
        found.F_pipe[name] = round(loop_efficiency(row, seconds), 4)
        found.F_total[name] = round(row.speedup / best_speedup(led.by_rank, floor), 4)
    for kind, methods in forced.items():
        for method, led in methods.items():
            if len(led.by_rank) > 1:
                best = best_tree(led.by_rank, round(led.nodes / led.rounds))
                found.F_tree[f"{kind} / {method}"] = round(led.acceptance_length / best, 4)
    return found


def _read(model: Any) -> int:
    """Bytes of the weights that a pass reads: all except an input embedding that is not tied to the output layer."""
    table = model.get_input_embeddings().weight
    tied = model.get_output_embeddings() is not None and model.get_output_embeddings().weight is table
    return sum(p.numel() * p.element_size() for p in model.parameters() if tied or p is not table)
