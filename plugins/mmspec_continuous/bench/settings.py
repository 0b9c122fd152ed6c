"""What is drawn, and by whom, unless the command line says otherwise."""

from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import torch

from mmspec.bench.methods import own_methods
from mmspec.kits.pictures.bench.judge import notes
from mmspec.registry import Pairing

WINDOWS = (8, 16, 32)
SWEPT = "reflection"
"""The method that is tried at every window; the others at the same one, so that they compare."""
TEMPERED = f"{SWEPT}, tempered"
"""The published lossy test over the same windows: `cspd` itself drafts with a second model."""
NARROW = 8
"""A window for batches: many rows fill a pass by themselves."""
NOTES = {
    "backbone_ms": "milliseconds a picture of the transformer's passes, the caption's included",
    "head_ms": "milliseconds a picture of the denoising head, which denoises all tokens of a pass together",
    "head_calls": "calls of the head a picture, one after another",
    **notes("token"),
}
SAME = partial(torch.allclose, atol=1e-2)
"""Whether two pictures' tokens, of about unit variance, are equal but for the arithmetic of a batch."""


@dataclass(frozen=True)
class Setting:
    """How tokens are drawn.

    Attributes:
        guidance: Scale of classifier-free guidance; 1 is none.
        whole: Whether windows are swept, baselines run, memory is measured, and batches are tried.
    """

    guidance: float
    whole: bool = False

    @property
    def name(self) -> str:
        """What it is called in a result."""
        return f"guidance {self.guidance:g}"


SETTINGS = (Setting(3.0, whole=True), Setting(1.0))


def methods_for(model: Any) -> tuple[str, ...]:
    """Our plugin's methods that fit a model and draft without another one; plain decoding, which all have, left out."""
    return tuple(p.method.name for p in own_methods(model) if not _takes_model(p))


def _takes_model(pairing: Pairing) -> bool:
    options = pairing.drafter.load_options() if pairing.drafter else None
    return options is not None and "model" in {field.name for field in fields(options)}
