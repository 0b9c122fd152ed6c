"""`continuous-draft-model`: a smaller model of the same family drafts a chain, by the core's `DraftModel`.

Speculative sampling (arXiv 2211.17192) with reflection for continuous distributions (2501.05370). Both models must
produce the same kind of tokens in the same denoising steps: step t is coupled with step t, so a drafter with fewer
steps cannot be aligned with its target and is refused.
Guarantee: exact under `rejection`.
Knob: `prefill` (larger: more of a picture's first tokens, which a small model predicts worst, are not drafted;
continuous speculative decoding, 2411.11925, leaves out 5 percent).
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field

from mmspec.api.stored import Stored
from mmspec.core.drafters.draft_model import DraftModel
from mmspec.core.noise import DraftNoise
from mmspec.core.protocols import Target
from mmspec.core.state import State
from mmspec.core.types import Draft
from mmspec.hosts.loading import fetched, load_part
from mmspec.registry.options import option
from mmspec_continuous.models.continuous_ar import CausalContinuousAR
from mmspec_continuous.specs import CONTINUOUS_DRAFT_MODEL
from mmspec_continuous.targets.continuous import ContinuousTarget

SAME = {
    "token_dim": "numbers of a token",
    "grid": "tokens per side (the patching)",
    "latents": "scales of the autoencoder's latents",
    "head": "head",
    "caption_dim": "width of caption features",
    "cls_token_num": "words of a caption",
}
"""Settings that target and draft model must share, with the words for messages."""


@dataclass(frozen=True)
class DraftModelOptions:
    model: Any = option(None, "the smaller model: live, or the folder or name of one")
    prefill: Annotated[float, Field(ge=0, le=1)] = option(
        0.0, "share of a picture's tokens, the first ones, that are not drafted"
    )


class ContinuousDraftModel(DraftModel):
    """Drafts a chain with a smaller `CausalContinuousAR`."""

    needs = CONTINUOUS_DRAFT_MODEL.needs

    def __init__(self, options: DraftModelOptions = DraftModelOptions()) -> None:
        super().__init__(ContinuousTarget(_loaded(options.model)))
        self.needs = type(self).needs | self.needs
        self.options = options
        self._first = 0

    def bind(self, target: Target) -> None:
        """Compare the tokens and the denoising steps of both models."""
        super().bind(target)
        if not isinstance(target, ContinuousTarget):
            raise ValueError(
                f"continuous-draft-model drafts for a CausalContinuousAR, not for a {type(target).__name__}"
            )
        assert isinstance(self.model, ContinuousTarget)
        own, other = self.model.model.config, target.model.config
        listed = [(what, _plain(own[name]), _plain(other[name])) for name, what in SAME.items()]
        if own.head == other.head == "diffusion":
            listed += [("denoising steps", own.steps, other.steps), ("sigma_0", own.sigma_0, other.sigma_0)]
        wrong = [f"{what}: the draft model has {a}, the target {b}" for what, a, b in listed if a != b]
        if wrong:
            raise ValueError(f"what this model drafts cannot be coupled with what the target draws: {'; '.join(wrong)}")
        self._first = math.ceil(self.options.prefill * target.context)

    def start(self, state: State, inputs: Any) -> Any:
        """As in `DraftModel`."""
        try:
            return super().start(state, inputs)
        except ValueError as error:
            raise ValueError(f"the draft model cannot follow: {error}") from error

    def propose(self, state: State, k: int, noise: DraftNoise) -> Draft:
        """As in `DraftModel`; empty until the furthest row has passed the first tokens that are not drafted."""
        if max(state.host.emitted) < self._first:
            return Draft.empty(state.root)
        return super().propose(state, k, noise)


def _loaded(model: Any) -> CausalContinuousAR:
    if isinstance(model, str | Path):
        stored = Stored.named(str(model))
        place = fetched(str(model)) if stored is None else stored.folder / "transformer"
        return load_part(CausalContinuousAR, place, torch.float32)
    if not isinstance(model, CausalContinuousAR):
        problem = "none was given" if model is None else f"this is a {type(model).__name__}"
        raise ValueError(f"a smaller CausalContinuousAR is needed, model=…; {problem}")
    return model


def _plain(value: Any) -> Any:
    """A configuration's value with tuples for the lists that a saved configuration has."""
    return tuple(value) if isinstance(value, list) else value
