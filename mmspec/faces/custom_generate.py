"""`model.generate(..., custom_generate=mmspec.custom_generate("prompt-lookup"))`: one call, nothing left behind."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from mmspec.faces.build import decoder_for
from mmspec.faces.generation import decode, refuse_call


def custom_generate(
    method: str = "auto",
    *,
    drafter: Any = None,
    rule: Any = None,
    k: int | None = None,
    policy: Any = None,
    seed: int | None = None,
    noise: str | None = None,
    streamer: Any = None,
    **options: Any,
) -> Callable[..., Tensor]:
    """A decoding function for one call of transformers' `generate`.

    Args:
        method: As in `mmspec.enable`.
        drafter: As in `mmspec.enable`.
        rule: As in `mmspec.enable`.
        k: As in `mmspec.enable`.
        policy: As in `mmspec.enable`.
        seed: As in `mmspec.enable`.
        noise: As in `mmspec.enable`.
        streamer: A streamer; give it here, because transformers does not pass its own on to custom functions.
        **options: Options of drafter, rule and policy.

    Returns:
        What `custom_generate=` takes.
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
        decoder = decoder_for(model, method, drafter=drafter, rule=rule, k=k, policy=policy, options=options)
        ids, _ = decode(
            decoder, input_ids, generation_config, logits_processor, extra, noise=noise, seed=seed, streamer=streamer
        )
        return ids

    return run
