"""`model.generate(..., custom_generate=mmspec.custom_generate("prompt-lookup"))`: one call, nothing left behind."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from mmspec.core.decoder import Decoder
from mmspec.faces.build import decoder_for
from mmspec.faces.generation import runner


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

    def decoder_of(model: Any) -> Decoder:
        return decoder_for(model, method, drafter=drafter, rule=rule, k=k, policy=policy, options=options)

    return runner(decoder_of, lambda report: None, noise=noise, seed=seed, streamer=streamer)
