"""How much a benchmark of language models does: calls for its bar, generated tokens for its duration."""

from collections.abc import Collection

from mmspec.bench import tuning
from mmspec.kits.text.bench.contestants import GRIDS, PEERS, STAND_INS
from mmspec.kits.text.bench.settings import BATCHED, READ, SHARE, TEMPERATURES, BenchOptions

OVERHEAD = 1.15
"""Seconds of a whole benchmark / those of as many tokens of plain decoding: compiling, profiling, limits; two machines
had 1.0 and 1.2."""


def calls_of(methods: Collection[str], options: BenchOptions, kinds: int) -> int:
    """How often the bar moves.

    Args:
        methods: Names of ours, plain decoding left out.
        options: How much.
        kinds: Of text.
    """
    each = (1 + options.repeats) * options.prompts
    raced = kinds * sum(each * _racers(methods, options, t) + _tried(options) for t in TEMPERATURES)
    apart = (kinds * len(methods) + 1 + len(methods)) * options.whole
    return raced + 2 * (1 + options.repeats) * _batched(methods, options) + apart


def tokens_of(methods: Collection[str], options: BenchOptions, kinds: int) -> int:
    """Tokens that are generated, or read where the truth is forced; arguments as in `calls_of`."""
    each = (1 + options.repeats) * options.prompts
    raced = kinds * sum(each * _racers(methods, options, t) + _tried(options) for t in TEMPERATURES)
    batches = 2 * (1 + options.repeats) * _batched(methods, options) * options.batch
    memory = 2 * (1 + len(methods)) * options.whole
    return (raced + batches + memory) * options.new + kinds * len(methods) * options.prompts * READ * options.whole


def _racers(methods: Collection[str], options: BenchOptions, temperature: float) -> int:
    return 1 + len(methods) + len(PEERS) + (len(STAND_INS) if options.whole and not temperature else 0)


def _tried(options: BenchOptions) -> int:
    """Calls that choose the peers' settings."""
    return tuning.calls_of(sum(map(len, GRIDS.values())), min(SHARE, options.prompts))


def _batched(methods: Collection[str], options: BenchOptions) -> int:
    """Who is tried on a batch."""
    return 1 + len(set(BATCHED) & set(methods)) if options.batch else 0
