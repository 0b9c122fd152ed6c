"""Plain decoding of neighbouring models with the same weights: what may be had without speculation, and what it costs.

* Fewer head steps: an ancestral sampler that leaves out every other noise level. Faster, and another distribution.
* A noiseless last step: what the model would draw if its distributions did not have to be coupled. Its distance to
  plain decoding is the price of sigma_0.

Both are lossy with respect to the target.
"""

from dataclasses import dataclass

from mmspec_continuous.models.continuous_ar import CausalContinuousAR

NOISELESS = 1e-6
"""sigma_0 of a last step that is practically noiseless, since tokens have about unit variance; distributions need a
positive one.
"""


@dataclass(frozen=True)
class Baseline:
    """A neighbouring model."""

    model: CausalContinuousAR  # the model, with the target's weights
    settings: dict[str, float]  # entries of its configuration that differ from the target's


def baselines(model: CausalContinuousAR) -> dict[str, Baseline]:
    """The neighbours of a model with a denoising head, by the name that a result gives them."""
    found = {}
    fewer = max((n for n in range(1, model.config.steps) if model.config.steps % n == 0), default=0)
    if fewer:
        found[f"plain, {fewer} head step{'s' * (fewer > 1)}"] = _neighbour(model, steps=fewer)
    found["plain, noiseless last step"] = _neighbour(model, sigma_0=NOISELESS)
    return found


def _neighbour(model: CausalContinuousAR, **settings: float) -> Baseline:
    """The same weights in another chain. Fewer steps go through some of the target's noise levels, the same ones."""
    config = {name: value for name, value in model.config.items() if not name.startswith("_")}
    neighbour = CausalContinuousAR(**config | settings)
    weights = model.state_dict()
    stride = model.config.steps // neighbour.config.steps
    weights["token_head.steps"] = weights["token_head.steps"][::stride]
    neighbour.load_state_dict(weights, assign=True)  # the very weights, of their type
    return Baseline(neighbour.to(model.device).eval(), settings)
