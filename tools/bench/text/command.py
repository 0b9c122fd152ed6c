"""`python -m tools.bench text` and `ssm`: the benchmarks of language models, whole."""

from functools import partial

import mmspec_ssm.bench
import mmspec_text.bench
from mmspec.kits.text.bench.command import bench_command
from mmspec.kits.text.bench.settings import Subject
from tools.bench.text.rounds import rounds
from tools.bench.text.whole import bench


def _text(model: str) -> Subject:
    return Subject("text", model, mmspec_text.bench.methods_of(model))


def _ssm(model: str) -> Subject:
    return Subject("ssm", model, mmspec_ssm.bench.methods_of(model))


bench_text = bench_command(
    _text, "mmspec/text-14m", "Speed on code and prose, memory, bounds, teacher forcing and limits.", bench
)
bench_ssm = bench_command(
    _ssm,
    "mmspec/ssm-5m",
    "The same of state-space models, and what rounds over trees cost.",
    partial(bench, by_nodes=rounds),
)
