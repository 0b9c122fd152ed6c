"""Small decoders of transformers built from their configurations: what a host must take, and what it must refuse."""

from transformers import PreTrainedModel

from mmspec.testing.zoo.accounting import MISSING, SAME, unaccounted
from mmspec.testing.zoo.dense import DENSE
from mmspec.testing.zoo.encoders import ENCODERS
from mmspec.testing.zoo.experts import EXPERTS
from mmspec.testing.zoo.halves import HALVES
from mmspec.testing.zoo.latent import LATENTS
from mmspec.testing.zoo.recipe import CONTEXT, VOCAB, WINDOW, Recipe, noisy
from mmspec.testing.zoo.recurrent import RECURRENT
from mmspec.testing.zoo.refused import MEANS, REFUSED, SAYS, Refused
from mmspec.testing.zoo.windows import WINDOWS
from mmspec.testing.zoo.wrapped import WRAPPED

ARCHITECTURES = {**DENSE, **WINDOWS, **EXPERTS, **LATENTS, **ENCODERS, **HALVES, **WRAPPED}
"""Name → recipe of every decoder that a host must take."""


def build(name: str, seed: int = 0) -> PreTrainedModel:
    """A small model of `ARCHITECTURES` or `RECURRENT`: float32, in evaluation mode, its texts without an end."""
    return {**ARCHITECTURES, **RECURRENT}[name].model(seed)


__all__ = [
    "ARCHITECTURES",
    "CONTEXT",
    "MEANS",
    "MISSING",
    "RECURRENT",
    "REFUSED",
    "SAME",
    "SAYS",
    "VOCAB",
    "WINDOW",
    "Recipe",
    "Refused",
    "build",
    "noisy",
    "unaccounted",
]
