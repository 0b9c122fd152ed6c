"""One `generate` call of transformers, decoded by ours.

transformers prepares a call (processors, criteria, padding, limits); this runs it and returns what it would return.
`use_cache=False` and `cache_implementation="static"` change nothing: drafts are verified on a cache of ours, which is
preallocated.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig
from transformers.generation import GenerateDecoderOnlyOutput

from mmspec.api.kept import Kept
from mmspec.api.refusals import refuse_inputs, refuse_settings
from mmspec.api.stopping import Stops, ends_of, limit_of
from mmspec.api.streaming import Stream
from mmspec.core.decoder import Decoder
from mmspec.core.noise import Source, default_generator
from mmspec.core.philox import PhiloxSource
from mmspec.core.processors import drafts_forbidden_by
from mmspec.core.report import Report
from mmspec.core.rules.match import Match
from mmspec.core.state import State
from mmspec.core.torch_noise import TorchSource
from mmspec.core.warp import Warp
from mmspec.hosts.prompt import integer_ids
from mmspec.registry.suggest import unknown
from mmspec.registry.warn import warn

NOISES = ("torch", "philox")


def runner(
    decoder_of: Callable[[Any], Decoder],
    keep: Callable[[Report], None],
    *,
    noise: str | None = None,
    seed: int | None = None,
    streamer: Any = None,
) -> Callable[..., Any]:
    """What `generate(custom_generate=…)` takes: decodes a prepared call.

    Args:
        decoder_of: The decoder of the model at hand.
        keep: Receives the report.
        noise: As in `decode`.
        seed: As in `decode`.
        streamer: As in `decode`.
    """

    def run(
        model: Any,
        input_ids: Tensor,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: Any,
        **extra: Any,
    ) -> Any:
        refuse_settings(generation_config)
        if _came_with(extra):
            refuse_inputs(extra)
        decoder = _allowed(decoder_of(model), logits_processor)
        how: dict[str, Any] = {"noise": noise, "seed": seed, "streamer": streamer}
        prepared = (generation_config, logits_processor, stopping_criteria, extra)
        answer, report = decode(decoder, input_ids, *prepared, **how)
        keep(report)
        return answer

    return run


def decode(
    decoder: Decoder,
    ids: Tensor,
    config: GenerationConfig,
    processors: Sequence[Any],
    criteria: Sequence[Any],
    extra: dict[str, Any],
    *,
    noise: str | None = None,
    seed: int | None = None,
    streamer: Any = None,
) -> tuple[Any, Report]:
    """Run a prepared call.

    Args:
        decoder: The decoder.
        ids: Prompt `[batch, prompt]`, left-padded.
        config: The prepared configuration.
        processors: The prepared logits processors.
        criteria: The prepared stopping criteria.
        extra: The model's other arguments: mask, positions, cache, images.
        noise: `torch`, `philox`, or None: `torch` where the rule can use it.
        seed: Of philox noise; None draws one from torch's generator.
        streamer: A streamer of transformers, batch of one.

    Returns:
        Ids `[batch, prompt + longest]` padded as transformers pads them (or the dictionary that holds them, where the
        configuration asks for one), and the report.
    """
    rows, ids = len(ids), integer_ids(ids)
    noise = noise_of(decoder, noise, seed)
    source = _source(noise, seed, ids) if config.do_sample else PhiloxSource.seeded(0, rows, ids.device)
    stream = Stream(streamer, ids)
    # Where the configuration names no padding, transformers prepares the first end for it.
    pad = 0 if config._pad_token_tensor is None else int(config._pad_token_tensor)
    asked = config.return_dict_in_generate
    scores = Kept("logits", rows, pad) if asked and config.output_scores else None
    logits = Kept("unprocessed", rows, pad) if asked and config.output_logits else None
    # In this order: what was emitted, where it ends, what is shown of it.
    watchers = [w for w in (scores, logits, Stops(criteria, rows, pad, scores), stream) if w is not None]
    rounds = decoder.rounds(
        {**extra, "input_ids": ids, "generation_config": config},
        limit_of(criteria, ids.shape[1], config.max_length),
        source=source,
        warp=Warp(tuple(processors), sample=bool(config.do_sample), pad=pad),
        ends=ends_of(criteria),
    )
    for state in rounds:
        for watcher in watchers:
            watcher.step(state)
        _heed(source, decoder, state)
    stream.end()
    sequences = _padded(ids, state.output(), pad)
    cache = extra.get("past_key_values", extra.get("cache_params"))  # models without keys call it so
    if asked or _came_with(extra):
        cache = cache if cache is None else returned_cache(decoder, state, sequences)
    if not asked:
        return sequences, state.report
    lengths = state.host_emitted
    kept = {name: k and k.all(lengths) for name, k in (("scores", scores), ("logits", logits))}
    return GenerateDecoderOnlyOutput(sequences=sequences, past_key_values=cache, **kept), state.report


def _heed(source: Source, decoder: Decoder, state: State) -> None:
    """No more drafts where a criterion or a streamer draws from torch's generator.

    Stock decoding draws in turns with them: one block of numbers, then theirs. Blocks that are drawn ahead are others.
    """
    if isinstance(source, TorchSource) and decoder.k and state.drafting and source.disturbed:
        state.drafting = False
        warn(
            "a stopping criterion or the streamer draws from torch's generator: this call goes on without drafts, so "
            "that numbers are drawn in the order in which the unmodified model draws them"
        )


def _came_with(extra: Mapping[str, Any]) -> bool:
    """Whether the cache in a prepared call is the user's own; if not, `generate` made it."""
    return bool(getattr(extra.get("past_key_values", extra.get("cache_params")), "_is_user_defined", False))


def returned_cache(decoder: Decoder, state: State, sequences: Tensor) -> Any:
    """What a call leaves in `past_key_values`, where the target can tell; a cache that came with the call is filled."""
    export = getattr(decoder.target, "export", None)
    return None if export is None else export(state.cache, sequences, state.emitted)


def noise_of(decoder: Decoder, noise: str | None, seed: int | None) -> str:
    """The noise that a call will use: what was asked for, else `torch` where the rule can use it and no seed was given.

    Raises:
        ValueError: There is no such noise, or it does not go with the rule or the seed.
    """
    exact = isinstance(decoder.rule, Match)
    noise = noise if noise is not None else "torch" if exact and seed is None else "philox"
    if noise not in NOISES:
        raise ValueError(unknown("noise", noise, NOISES))
    if noise == "torch" and not exact:
        raise ValueError(f"noise='torch' needs the rule 'match', got {type(decoder.rule).__name__}; use 'philox'")
    if noise == "torch" and seed is not None:
        raise ValueError("seed= belongs to noise='philox'; under noise='torch' torch.manual_seed decides")
    return noise


def _allowed(decoder: Decoder, processors: Sequence[Any]) -> Decoder:
    """The decoder, or the same without a drafter where a logits processor forbids drafts."""
    stateful = drafts_forbidden_by(processors)
    if not stateful or not decoder.k:
        return decoder
    warn(
        f"this call runs without drafts, because {', '.join(stateful)} may keep state between calls. A class (or "
        "prefix_allowed_tokens_fn) that is a pure function of what it is given says so: speculative = 'history'"
    )
    return Decoder(decoder.target, None, decoder.rule, name=decoder.name)


def _padded(ids: Tensor, units: Sequence[Tensor], pad: int) -> Tensor:
    """Prompt and rows of several lengths as one tensor."""
    longest = max(len(row) for row in units)
    result = ids.new_full((len(ids), longest), pad)
    for b, row in enumerate(units):
        result[b, : len(row)] = row
    return torch.cat([ids, result], 1)


def _source(noise: str, seed: int | None, ids: Tensor) -> Source:
    if noise == "torch":
        return TorchSource(default_generator(ids.device), len(ids), ids.device)
    drawn = int(torch.randint(2**62, (), device="cpu")) if seed is None else seed
    return PhiloxSource.seeded(drawn, len(ids), ids.device)
