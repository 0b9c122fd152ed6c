"""Small decoders of transformers built from their configurations: those that a host must take, and those it refuses."""

from transformers import PreTrainedModel

from tests.support.random_models import noisy
from tests.support.zoo.accounting import MISSING, SAME, unaccounted
from tests.support.zoo.dense import DENSE
from tests.support.zoo.encoders import ENCODERS
from tests.support.zoo.experts import EXPERTS
from tests.support.zoo.halves import HALVES
from tests.support.zoo.latent import LATENTS
from tests.support.zoo.recipe import CONTEXT, VOCAB, WINDOW, Recipe
from tests.support.zoo.recurrent import RECURRENT
from tests.support.zoo.refused import MEANS, REFUSED, SAYS, Refused
from tests.support.zoo.windows import WINDOWS
from tests.support.zoo.wrapped import WRAPPED

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
