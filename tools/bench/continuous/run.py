"""The bench of `continuous`: windows of tokens, plain decoding, and models nearby that are faster or without noise.

Three times are measured: the call's, that of the transformer's passes, and that of the denoising head alone. Plain
decoding of neighbouring models with the same weights shows what may be had without speculation, and what it costs:

* Fewer head steps: an ancestral sampler that leaves out every other noise level. Faster, and another distribution.
* A noiseless last step: what the model would draw if its distributions did not have to be coupled. Its distance to
  plain decoding is the price of sigma_0.

Both are lossy with respect to the target.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from mmspec.bench.methods import own_methods
from mmspec.bench.race import Track
from mmspec.bench.timing import NODES, pass_seconds
from mmspec.kits.pictures.conditions import Condition
from mmspec.registry import Pairing
from mmspec.report.result import Row
from mmspec_continuous.models.continuous_ar import CausalContinuousAR
from mmspec_continuous.models.denoiser import Denoiser
from mmspec_continuous.targets.continuous import ContinuousTarget
from tools.bench.continuous.head import HeadTimedSampler, TargetWithHead, head_times
from tools.bench.limits import limits_of, measure_floor
from tools.bench.pictures.contestants import Other, OwnMethod
from tools.bench.pictures.judge import notes
from tools.bench.pictures.options import tried, windowed
from tools.bench.pictures.subject import Setting
from tools.report.whole import Limits

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


WINDOWS = (8, 16, 32)
SWEPT = "reflection"
"""The method that is tried at every window; the others share one window, so that they compare."""
TEMPERED = f"{SWEPT}, tempered"
"""The published lossy test over the same windows: `cspd` itself drafts with a second model."""
NARROW = 8
"""The window for batches: many rows fill a pass by themselves."""
SETTINGS = (Setting(3.0, whole=True), Setting(1.0))


class TokenSubject:
    """Pictures of continuous tokens, as `tools.bench.pictures.subject.Subject` asks.

    Raises:
        ValueError: The transformer has no denoising head or no null caption.
    """

    kind, unit = "continuous", "token"
    settings = SETTINGS
    batched = (SWEPT, windowed(SWEPT, NARROW))
    notes = {  # noqa: RUF012
        "backbone_ms": "milliseconds a picture of the transformer's passes, the caption's included",
        "head_ms": "milliseconds a picture of the denoising head, which denoises all tokens of a pass together",
        "head_calls": "calls of the head a picture, one after another",
        **notes("token"),
    }

    def __init__(self, model: CausalContinuousAR) -> None:
        denoises = isinstance(model, CausalContinuousAR) and isinstance(model.token_head, Denoiser)
        if not denoises or not model.config.null_caption:
            raise ValueError(
                "this model cannot be measured: a denoising head and a null caption, for guidance, are needed"
            )
        self.model = model
        self.methods = methods_for(model)
        self.about = (
            f"The head has {model.config.steps} steps and sigma_0 = {model.config.sigma_0:g}. {TEMPERED}: the test of "
            "continuous speculative decoding (arXiv 2411.11925) over the same windows, with tau = 42."
        )
        self._baselines = {
            name: Other(OwnMethod(HeadTimedSampler(near.model)), options=near.settings, exactness="lossy")
            for name, near in baselines(model).items()
        }

    def sampler(self, setting: Setting) -> HeadTimedSampler:
        return HeadTimedSampler(self.model)

    def tried(self, chosen: Sequence[str], window: int, whole: bool) -> dict[str, dict[str, Any]]:
        """One method at every window, and under the published test, where the whole is tried."""
        options = tried(chosen, window, SWEPT if whole else None, WINDOWS)
        if whole and SWEPT in options:
            options[TEMPERED] = {**options[SWEPT], "rule": "tempered"}
        return options

    def others(self, setting: Setting, plain: OwnMethod, window: int) -> dict[str, Other]:
        """Plain decoding of models nearby, where the whole is tried."""
        return self._baselines if setting.whole else {}

    def row(self, row: Row, track: Track | None) -> Row:
        """Add the head's times; leave out `same_as_plain`, since only the distribution is promised."""
        quality = {name: value for name, value in row.quality.items() if name != "same_as_plain"}
        return replace(row, quality=quality if track is None else head_times(track.every) | quality)

    def same(self, a: Tensor, b: Tensor) -> bool:
        """Tokens have about unit variance."""
        return torch.allclose(a, b, atol=1e-2)

    def limits(self, setting: Setting, condition: Condition, most: int, device: str) -> tuple[Limits, dict[int, float]]:
        """Of passes with a draw of the head at every node."""
        target: Any = ContinuousTarget(self.model)
        with_head: Any = TargetWithHead(target)
        seconds = pass_seconds(with_head, condition, [n for n in NODES if n < most] + [most])
        alone = pass_seconds(target, condition, (1, most))
        once, again = _bytes_read(self.model)
        passed = once + self.model.config.steps * again  # bytes that one node's arithmetic goes through
        floor = measure_floor(float(once + again), (1 + setting.guided) * 2.0 * passed / 4, device)
        measured = {
            "seconds_of_one_node_without_the_head": alone[1],
            f"seconds_of_{most}_nodes": seconds[most],
            f"seconds_of_{most}_nodes_without_the_head": alone[most],
        }
        return limits_of(seconds, floor, **measured), seconds


def methods_for(model: Any) -> tuple[str, ...]:
    """Our plugin's methods that fit a model and draft without a second one; without plain decoding."""
    return tuple(pairing.method.name for pairing in own_methods(model) if not _takes_model(pairing))


def _takes_model(pairing: Pairing) -> bool:
    options = pairing.drafter.load_options() if pairing.drafter else None
    return options is not None and "model" in {field.name for field in fields(options)}


def _bytes_read(model: CausalContinuousAR) -> tuple[int, int]:
    """Bytes of weights that every pass reads: once a token, and once a denoising step."""
    again = [part for name, part in model.token_head.named_children() if name not in ("told", "modulation")]
    caption = set(model.cls_embedding.modules())
    steps = {layer for part in again for layer in part.modules()}
    layers = [part for part in model.modules() if isinstance(part, torch.nn.Linear) and part not in caption]
    size = {layer: layer.weight.numel() * layer.weight.element_size() for layer in layers}
    return sum(n for part, n in size.items() if part not in steps), sum(n for p, n in size.items() if p in steps)
