"""One `generate` call of transformers, decoded by ours.

transformers prepares a call (processors, criteria, padding, limits); this runs it and returns what it would return.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import EosTokenCriteria, GenerationConfig, MaxLengthCriteria

from mmspec.core.decoder import Decoder
from mmspec.core.noise import Source
from mmspec.core.philox import PhiloxSource
from mmspec.core.rules.match import Match
from mmspec.core.state import State
from mmspec.core.torch_noise import TorchSource, default_generator
from mmspec.core.warp import Warp
from mmspec.registry.suggest import unknown
from mmspec.report.report import Report

NOISES = ("torch", "philox")
_STATEFUL = frozenset({"UnbatchedClassifierFreeGuidanceLogitsProcessor", "SynthIDTextWatermarkLogitsProcessor"})
_REFUSED = {
    "return_dict_in_generate": "returns ids only",
    "output_scores": "keeps no scores",
    "output_logits": "keeps no logits",
    "output_attentions": "keeps no attentions",
    "output_hidden_states": "keeps no hidden states",
    "penalty_alpha": "has no contrastive search",
    "dola_layers": "has no DoLa",
    "prompt_lookup_num_tokens": "is the speculation itself; use the method prompt-lookup",
    "constraints": "has no constrained beams",
}


def runner(
    decoder_of: Callable[[Any], Decoder],
    keep: Callable[[Report], None],
    *,
    noise: str | None = None,
    seed: int | None = None,
    streamer: Any = None,
) -> Callable[..., Tensor]:
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
    ) -> Tensor:
        refuse_call(generation_config, stopping_criteria, logits_processor, extra)
        how: dict[str, Any] = {"noise": noise, "seed": seed, "streamer": streamer}
        ids, report = decode(decoder_of(model), input_ids, generation_config, logits_processor, extra, **how)
        keep(report)
        return ids

    return run


def refuse_call(
    config: GenerationConfig, criteria: Sequence[Any], processors: Sequence[Any], extra: dict[str, Any]
) -> None:
    """Refuse, before anything runs, what would otherwise be silently ignored.

    Raises:
        ValueError: Names the argument.
    """
    if (config.num_beams or 1) > 1:
        raise ValueError("num_beams > 1: beam search is not speculative; call disable() first, or use num_beams=1")
    for name, why in _REFUSED.items():
        if getattr(config, name, None):
            raise ValueError(f"{name}={getattr(config, name)!r} is not supported here: mmspec {why}")
    for criterion in criteria:
        if not isinstance(criterion, (MaxLengthCriteria, EosTokenCriteria)):
            raise ValueError(f"the stopping criterion {type(criterion).__name__} is not supported yet")
    for processor in processors:
        if type(processor).__name__ in _STATEFUL:
            raise ValueError(f"{type(processor).__name__} keeps state between calls and cannot be speculated over")
    if extra.get("inputs_embeds") is not None:
        raise ValueError("inputs_embeds is not supported yet; pass input_ids")
    cache = extra.get("past_key_values")
    if cache is not None and cache.get_seq_length():
        raise ValueError("past_key_values that already hold tokens are not supported yet; pass the whole prompt")


def decode(
    decoder: Decoder,
    ids: Tensor,
    config: GenerationConfig,
    processors: Sequence[Any],
    extra: dict[str, Any],
    *,
    noise: str | None = None,
    seed: int | None = None,
    streamer: Any = None,
) -> tuple[Tensor, Report]:
    """Run a prepared call.

    Args:
        decoder: The decoder.
        ids: Prompt `[batch, prompt]`, left-padded.
        config: The prepared configuration.
        processors: The prepared logits processors.
        extra: The model's other arguments; `attention_mask` is read.
        noise: `torch`, `philox`, or None: `torch` where the rule can use it.
        seed: Of philox noise; None draws one from torch's generator.
        streamer: A streamer of transformers, batch of one.

    Returns:
        Ids `[batch, prompt + longest]` padded as transformers pads them, and the report.
    """
    device = ids.device
    noise = noise_of(decoder, noise, seed)
    source = _source(noise, seed, ids) if config.do_sample else PhiloxSource.seeded(0, len(ids), device)
    stream = _Stream(streamer, ids)
    ends = config.eos_token_id
    output = decoder.generate(
        {"input_ids": ids, "attention_mask": extra.get("attention_mask")},
        config.max_length - ids.shape[1],
        source=source,
        warp=Warp(tuple(processors), sample=bool(config.do_sample)),
        ends=ends.tolist() if isinstance(ends, Tensor) else ends,
        on_step=stream.step,
    )
    stream.end()
    longest = max(len(row) for row in output.units)
    # Where a configuration names no padding, transformers prepares the first end for it.
    pad = config._pad_token_tensor if config._pad_token_tensor is not None else ids.new_zeros(())
    result = pad.to(ids).expand(len(ids), longest).clone()
    for b, row in enumerate(output.units):
        result[b, : len(row)] = row
    return torch.cat([ids, result], 1), output.report


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


def _source(noise: str, seed: int | None, ids: Tensor) -> Source:
    if noise == "torch":
        return TorchSource(default_generator(ids.device), len(ids), ids.device)
    drawn = int(torch.randint(2**62, ())) if seed is None else seed
    return PhiloxSource.seeded(drawn, len(ids), ids.device)


class _Stream:
    """Feeds a streamer what each round emitted."""

    def __init__(self, streamer: Any, ids: Tensor) -> None:
        if streamer is not None and len(ids) > 1:
            raise ValueError(f"a streamer takes a batch of one, got {len(ids)} rows")
        self._streamer = streamer
        self._prompt = ids
        self._sent = 0

    def step(self, state: State) -> None:
        if self._streamer is not None:
            if not self._sent:  # not earlier: a call that is refused streams nothing
                self._streamer.put(self._prompt.cpu())
            units = state.output()[0]
            self._streamer.put(units[self._sent :].cpu())
            self._sent = len(units)

    def end(self) -> None:
        if self._streamer is not None:
            self._streamer.end()
