"""One `generate` call of transformers, decoded by mmspec.

transformers prepares a call (processors, criteria, padding, limits); this module decodes it and returns what
transformers would return. `use_cache` and `cache_implementation="static"` have no effect: drafts are verified on
mmspec's own cache, which grows as it is filled. Guidance and known units are taken out of the processors: transformers
guides by running the model on the unconditional prompt, one unit after the other, in a cache with which no draft can be
verified. Both prompts as halves of one batch give the same scores, up to a constant per unit.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any

import torch
from torch import Tensor
from transformers import (
    GenerationConfig,
    PrefixConstrainedLogitsProcessor,
    UnbatchedClassifierFreeGuidanceLogitsProcessor,
)
from transformers.generation import GenerateDecoderOnlyOutput

from mmspec.api.refusals import CACHE_ARGUMENTS, refuse_inputs, refuse_settings, warn_of_no_effect
from mmspec.api.stopping import StepScores, StoppingMonitor, Stream, end_ids, limit_of, notices_late
from mmspec.core.capabilities import Exporting
from mmspec.core.decoder import Decoder
from mmspec.core.guided import NULL_INPUTS, TakesNull
from mmspec.core.known_units import KnowsUnits, OnlyAllowed
from mmspec.core.learning import Learner
from mmspec.core.noise import Source, default_generator
from mmspec.core.philox import PhiloxSource
from mmspec.core.processors import drafts_forbidden_by, is_elementwise
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
    on_report: Callable[[Report], None],
    *,
    noise: str | None = None,
    seed: int | None = None,
    streamer: Any = None,
    learner: Learner | None = None,
) -> Callable[..., Any]:
    """The function that `generate(custom_generate=…)` takes: it decodes a prepared call by the live model's decoder,
    and `on_report` gets the report. The other arguments go to `decode`.
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
        warn_of_no_effect(generation_config)
        if _has_user_cache(extra):
            refuse_inputs(extra)
        decoder = decoder_of(model)
        processors, inputs, guidance = lifted_guidance(decoder, input_ids, logits_processor, generation_config, extra)
        processors, forced = lifted_constraint(input_ids, processors, generation_config, decoder.target.vocab)
        decoder = without_forbidden_drafts(decoder, processors)
        result, report = decode(
            decoder,
            input_ids,
            generation_config,
            processors,
            stopping_criteria,
            inputs,
            guidance=guidance,
            forced=forced,
            noise=noise,
            seed=seed,
            streamer=streamer,
            learner=learner,
        )
        on_report(report)
        return result

    return run


def decode(
    decoder: Decoder,
    ids: Tensor,
    config: GenerationConfig,
    processors: Sequence[Any],
    criteria: Sequence[Any],
    extra: dict[str, Any],
    *,
    guidance: float | None = None,
    forced: Tensor | None = None,
    noise: str | None = None,
    seed: int | None = None,
    streamer: Any = None,
    learner: Learner | None = None,
) -> tuple[Any, Report]:
    """Run a prepared call; returns ids `[batch, prompt + longest]`, padded as transformers pads them (or
    `GenerateDecoderOnlyOutput`, where the configuration asks for it), and the report.

    transformers has prepared the configuration, the processors, the criteria, and `ids` `[batch, prompt]`, padded on
    the left. `extra` is what else the model reads: mask, positions, cache, images, an unconditional prompt, whose scale
    is `guidance`. `forced` are units that are known in advance, as in `Warp`. The noise is `torch` where the rule can
    use it, unless it is given; the seed of philox noise is drawn from torch's generator, unless it is given. A streamer
    takes a batch of one. A learner keeps the rows for the drafter's lessons, if their prompts are texts alone.
    """
    rows, ids = len(ids), integer_ids(ids)
    noise = noise_of(decoder, noise, seed)
    as_dict, limit = config.return_dict_in_generate, limit_of(criteria, ids.shape[1], config.max_length)
    late = limit if notices_late(ids.device, _cache_in(extra), as_dict or _has_user_cache(extra)) else None
    source = _source(noise, seed, ids, late) if config.do_sample else PhiloxSource.seeded(0, rows, ids.device)
    stream = Stream(streamer, ids)
    # Without a padding token in the configuration, transformers prepares the first end token as one.
    pad = 0 if config._pad_token_tensor is None else int(config._pad_token_tensor)
    scores = StepScores(True, rows, pad) if as_dict and config.output_scores else None
    logits = StepScores(False, rows, pad) if as_dict and config.output_logits else None
    # The order matters: criteria read the scores, and the stream shows rows up to where the criteria cut them.
    monitor = StoppingMonitor(criteria, rows, pad, scores)
    if learner is not None and decoder.k and _text_alone(extra):
        mask = extra.get("attention_mask")
        learner.turn_to(ids[0] if mask is None else ids[0][mask[0, -ids.shape[1] :].bool()])
    notes = learner.notes() if learner is not None and decoder.k and _text_alone(extra) else None
    observers = [o for o in (notes, scores, logits, monitor, stream) if o is not None]
    rounds = decoder.rounds(
        {**extra, "input_ids": ids, "generation_config": config},
        limit,
        watched=streamer is not None or as_dict or monitor.watches or notes is not None,
        source=source,
        warp=Warp(tuple(processors), sample=bool(config.do_sample), guidance=guidance, pad=pad, forced=forced),
        ends=end_ids(criteria),
    )
    with closing(rounds):
        for state in rounds:
            for observer in observers:
                observer.step(state)
            _stop_drafting_if_disturbed(source, decoder, state)
    stream.end()
    if learner is not None and notes is not None:
        learner.keep(notes.rows(state))
    sequences = _padded(ids, state.output(), pad)
    cache = _cache_in(extra)
    if as_dict or _has_user_cache(extra):
        cache = cache if cache is None else returned_cache(decoder, state, sequences)
    if not as_dict:
        return sequences, state.report
    lengths = state.host.emitted
    returned = {name: s and s.all(lengths) for name, s in (("scores", scores), ("logits", logits))}
    return GenerateDecoderOnlyOutput(sequences=sequences, past_key_values=cache, **returned), state.report


def _stop_drafting_if_disturbed(source: Source, decoder: Decoder, state: State) -> None:
    """No more drafts in a call whose criterion or streamer draws from torch's generator.

    Unmodified decoding and the criterion draw in turns, a block of numbers each; blocks that are drawn ahead for drafts
    would change whose numbers are whose.
    """
    if isinstance(source, TorchSource) and decoder.k and state.budget.drafting and source.disturbed:
        state.budget.drafting = False
        warn(
            "a stopping criterion or the streamer draws from torch's generator: this call goes on without drafts, so "
            "that numbers are drawn in the order in which the unmodified model draws them"
        )


def _text_alone(extra: Mapping[str, Any]) -> bool:
    """True if the model reads ids and nothing else: no embeddings, images, sounds, or states of an encoder."""
    read = [value for value in extra.values() if isinstance(value, Tensor)]
    return extra.get("encoder_outputs") is None and not any(value.is_floating_point() for value in read)


def _cache_in(extra: Mapping[str, Any]) -> Any:
    keys, states = CACHE_ARGUMENTS
    return extra.get(keys, extra.get(states))


def _has_user_cache(extra: Mapping[str, Any]) -> bool:
    """True if the cache in a prepared call is the user's own, and not one that `generate` made."""
    return bool(getattr(_cache_in(extra), "_is_user_defined", False))  # transformers sets it on users' caches only


def returned_cache(decoder: Decoder, state: State, sequences: Tensor) -> Any:
    """The call's `past_key_values`, the user's own filled one if there is one, in the form of unmodified decoding; None
    where the target cannot export it, and of a call that shared its passes.
    """
    target = decoder.target
    if not isinstance(target, Exporting) or state.cache is None:
        return None
    return target.export(state.cache, sequences, state.emitted)


def noise_of(decoder: Decoder, noise: str | None, seed: int | None) -> str:
    """The noise of a call: as asked for, else `torch` where the rule can use it and no seed is given, else `philox`;
    refuses what does not go with the rule or the seed.
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


def without_forbidden_drafts(decoder: Decoder, processors: Sequence[Any]) -> Decoder:
    """The decoder; without its drafter where a logits processor forbids drafts, with a warning."""
    stateful = drafts_forbidden_by(processors)
    if not stateful or not decoder.k:
        return decoder
    warn(
        f"this call runs without drafts, because {', '.join(stateful)} may keep state between calls. A class (or "
        "prefix_allowed_tokens_fn) that is a pure function of what it is given says so: speculative = 'history'"
    )
    return decoder.without_drafts()


def _padded(ids: Tensor, units: Sequence[Tensor], pad: int) -> Tensor:
    """Prompts and new tokens of several lengths as one tensor, padded on the right: `[batch, prompt + longest]`."""
    longest = max(len(row) for row in units)
    result = ids.new_full((len(ids), longest), pad)
    for b, row in enumerate(units):
        result[b, : len(row)] = row
    return torch.cat([ids, result], 1)


def _source(noise: str, seed: int | None, ids: Tensor, late: int | None) -> Source:
    """The noise source of a call that samples; `late` as in `TorchSource`."""
    if noise == "torch":
        return TorchSource(default_generator(ids.device), len(ids), ids.device, late)
    drawn = int(torch.randint(2**62, (), device="cpu")) if seed is None else seed
    return PhiloxSource.seeded(drawn, len(ids), ids.device)


def lifted_guidance(
    decoder: Decoder, ids: Tensor, processors: Sequence[Any], config: GenerationConfig, extra: Mapping[str, Any]
) -> tuple[Sequence[Any], dict[str, Any], float | None]:
    """Take guidance out of a prepared call's processors, where the decoder's target can do it; returns the processors
    that are left, the arguments with the unconditional prompt, and the scale (None: nothing was taken out).

    `ids` is the prompt, `[batch, prompt]`. Guidance is the first of the prepared processors, or not among them. Calls
    that return scores or caches keep their processors.
    """
    first: Any = next(iter(processors), None)
    unchanged = processors, dict(extra), None
    if type(first) is not UnbatchedClassifierFreeGuidanceLogitsProcessor or config.return_dict_in_generate:
        return unchanged
    context = first.unconditional_context
    if not context["first_pass"] or not isinstance(decoder.target, TakesNull):
        return unchanged
    null_ids, mask = context["input_ids"], context["attention_mask"]
    null_ids = ids[:, -1:] if null_ids is None else null_ids.to(ids.device)
    mask = torch.ones_like(null_ids) if mask is None else mask.to(ids.device)
    # An empty mapping says that there are no pictures; the prompt is ids alone.
    inputs = {name: value for name, value in extra.items() if not (isinstance(value, Mapping) and not value)}
    null = {"input_ids": null_ids, "attention_mask": mask}
    if not decoder.target.takes_null({**inputs, "input_ids": ids}, null):
        return unchanged
    return list(processors)[1:], {**inputs, NULL_INPUTS: null}, float(first.guidance_scale)


def lifted_constraint(
    ids: Tensor, processors: Sequence[Any], config: GenerationConfig, vocab: int | None
) -> tuple[Sequence[Any], Tensor | None]:
    """Take a constraint that is data out of a prepared call's processors; returns the processors, of which one lets the
    allowed ids pass, and the known units.

    `ids` is the prompt, `[batch, prompt]`; `vocab` is the number of the model's ids, if it is known. Nothing is taken
    out (None) of calls that return scores or go on behind the units that the constraint knows, and where a processor
    behind the constraint may forbid one of these units.
    """
    for place, processor in enumerate(processors):
        if type(processor) is not PrefixConstrainedLogitsProcessor or config.return_dict_in_generate:
            continue
        known = processor._prefix_allowed_tokens_fn
        if not isinstance(known, KnowsUnits) or known.prompt != ids.shape[1]:
            continue
        whole = config.max_length - known.prompt <= len(known.forced)
        if whole and _stand(known.forced.to(ids.device), processors[place + 1 :], vocab):
            only = OnlyAllowed(known, known.allowed.to(ids.device))
            return [*processors[:place], only, *processors[place + 1 :]], known.forced
    return processors, None


def _stand(forced: Tensor, processors: Sequence[Any], vocab: int | None) -> bool:
    """True if known units keep all mass under the processors that follow their constraint, of which none may read the
    history; scores `[id, vocab]` that leave one of the ids `forced [units]` each go through them.
    """
    known = forced[forced >= 0].unique()[:, None]
    if vocab is None or bool((known >= vocab).any()) or not all(map(is_elementwise, processors)):
        return False
    scores = torch.full((len(known), vocab), -torch.inf, device=known.device).scatter_(1, known, 0.0)
    for processor in processors:
        scores = processor(known, scores)
    return bool((scores.softmax(-1).gather(1, known) == 1).all())
