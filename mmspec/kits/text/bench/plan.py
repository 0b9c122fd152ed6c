"""The work of a benchmark of language models: calls for the progress bar, generated tokens for the estimated time."""

from collections.abc import Collection

from mmspec.bench import tuning
from mmspec.kits.text.bench.contestants import GRIDS, PEERS, STAND_INS
from mmspec.kits.text.bench.settings import BATCHED, READ, SHARE, TEMPERATURES, BenchOptions

OVERHEAD = 1.15
"""Seconds of a whole benchmark / seconds of as many tokens of plain decoding: compiling, profiling and limits add time,
drafts save some. Two machines had 1.0 and 1.2."""


def calls_of(methods: Collection[str], options: BenchOptions, kinds: int) -> int:
    """The number of calls.

    Args:
        methods: The names of our methods without plain decoding.
        options: The size of the benchmark.
        kinds: The number of kinds of text.
    """
    each = (1 + options.repeats) * options.prompts
    raced = kinds * sum(each * _racers(methods, options, t) + _tried(options) for t in TEMPERATURES)
    apart = (kinds * len(methods) + 1 + len(methods)) * options.whole
    return raced + 2 * (1 + options.repeats) * _batched(methods, options) + apart


def tokens_of(methods: Collection[str], options: BenchOptions, kinds: int) -> int:
    """The number of tokens that are generated, or read under teacher forcing; for the arguments see `calls_of`."""
    each = (1 + options.repeats) * options.prompts
    raced = kinds * sum(each * _racers(methods, options, t) + _tried(options) for t in TEMPERATURES)
    batches = 2 * (1 + options.repeats) * _batched(methods, options) * options.batch
    memory = 2 * (1 + len(methods)) * options.whole
    return (raced + batches + memory) * options.new + kinds * len(methods) * options.prompts * READ * options.whole


def _racers(methods: Collection[str], options: BenchOptions, temperature: float) -> int:
    return 1 + len(methods) + len(PEERS) + (len(STAND_INS) if options.whole and not temperature else 0)


def _tried(options: BenchOptions) -> int:
    """The number of calls that choose the peers' settings."""
    return tuning.calls_of(sum(map(len, GRIDS.values())), min(SHARE, options.prompts))


def _batched(methods: Collection[str], options: BenchOptions) -> int:
    """The number of methods that are tried on a batch."""
    return 1 + len(set(BATCHED) & set(methods)) if options.batch else 0
