"""Cases for the logical device: methods on continuous tokens, on frames of codes and on denoised frames.

Imported by `tests.support.device_run` only, after the device has replaced functions of torch.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from mmspec.api.build import decoder_for
from mmspec.core.decoder import Decoder
from mmspec.core.report import Report
from mmspec.core.warp import Warp
from mmspec_video.models.next_frame import NextFrameDiT
from mmspec_video.models.oasis import OasisDiT
from mmspec_video.playing.frames import FramePlay
from mmspec_video.sampling import OasisSampler
from tests.support.device_cases import Case, Place, Runnable, Send, copied
from tests.support.examples import continuous as continuous_example
from tests.support.examples import video as video_example

LIMIT, ACTIONS, GIVEN = 8, 4, 2
WINDOW = 4
"""Frames of the attention window: less than the clip has, so that frames leave it."""
TRACES = torch.tensor([[1, 1, 2, 2, 1, 1], [2, 2, 2, 1, 1, 1]])
"""The players' actions `[row, frame]`: at first repeated, as drafters guess, then changed."""


def continuous() -> dict[str, Runnable]:
    """The methods of the continuous plugin, and two on a head of mixtures."""
    guided, mixed = (example.target.model for example in continuous_example.continuous())
    small = continuous_example.draft_model().options.model
    methods: dict[str, dict[str, Any]] = {
        "plain": {},
        "reflection": {},
        "draft-reflection": {"model": small},
        "denoise-ahead": {"ahead": 2},
        "cspd": {"model": small, "prefill": 0.0},
        "causal-sets": {},
    }
    prompt, warp = continuous_example.captions([0, 1], 1.5), Warp()
    cases: dict[str, Runnable] = {
        f"{method}, latents": Case(guided, prompt, method, options=options, warp=warp, limit=LIMIT)
        for method, options in methods.items()
    }
    for method in ("plain", "reflection"):
        plain = continuous_example.captions([0, 1])
        cases[f"{method}, mixtures"] = Case(mixed, plain, method, warp=warp, limit=2 * LIMIT)
    return cases


def codes() -> dict[str, Runnable]:
    """The methods on frames of codes."""
    world = video_example.token_frames()
    return {
        f"{method}, codes": Case(world.target.model, world.prompt([0, 1]), method)
        for method in ("plain", "frame-gs-sjd")
    }


def frames() -> dict[str, Runnable]:
    """The methods on denoised frames."""
    sizes = dict(channels=2, height=4, width=4, patch=2, dim=32, depth=2, heads=2, actions=ACTIONS, frames=WINDOW)
    dit = _lively(NextFrameDiT(**sizes, steps=2, context_time=0.05))
    student = _lively(NextFrameDiT(**sizes, objective="consistency", steps=2))
    shape = dict(input_h=4, input_w=6, in_channels=2, hidden_size=32, depth=2, num_heads=2, external_cond_dim=6)
    oasis: Any = _lively(OasisDiT(**shape, max_frames=WINDOW), 0.1)
    oasis.sampler, oasis.vectors = OasisSampler(2), torch.cat([torch.eye(ACTIONS, 6), torch.zeros(1, 6)])
    branches = {"branches": 2}
    return {
        "plain, frames": Frames(dit, "plain"),
        "branch-prediction, frames": Frames(dit, "branch-prediction", branches),
        "branch-prediction, oasis": Frames(oasis, "branch-prediction", branches),
        "nfd, frames": Frames(dit, "nfd", {"measure": True}),
        "student, frames": Frames(dit, "student", {**branches, "student": student, "tolerance": 1.2}),
    }


def _lively(model: nn.Module, spread: float = 0.15) -> nn.Module:
    """Weights that let nothing pass unnoticed; modulations, too, which begin at zero."""
    generator = torch.Generator().manual_seed(1)
    for weights in model.parameters():
        weights.data.copy_(torch.randn(weights.shape, generator=generator) * spread)
    return model.eval()


@dataclass(frozen=True)
class Frames:
    """A method on denoised frames."""

    model: nn.Module  # the transformer
    method: str
    options: dict[str, Any] = field(default_factory=dict)  # its options; models among them are moved, too

    def begin(self, place: Place, send: Send) -> "Shown":
        """Begin a call over copies of the models."""
        options = {name: copied(value, place) for name, value in self.options.items()}
        return Shown(decoder_for(copied(self.model, place), self.method, k=2, options=options), send)


class Shown:
    """A call over denoised frames. A round shows a frame and makes frames ahead of the next action."""

    def __init__(self, decoder: Decoder, send: Send) -> None:
        rows, length = TRACES.shape
        shape = decoder.target.model.frame_shape  # type: ignore[attr-defined]
        first = torch.randn(rows, GIVEN, *shape, generator=torch.Generator().manual_seed(0))
        past = torch.zeros(rows, GIVEN - 1, dtype=torch.int64)
        self.play = FramePlay(decoder, send(first), send(past), length, list(range(rows)))
        self.actions, self.frames = send(TRACES), list[Tensor]()

    @property
    def finished(self) -> bool:
        """True if all frames were shown."""
        return self.play.shown == self.play.length

    @property
    def report(self) -> Report:
        """The play's."""
        return self.play.report

    def advance(self) -> None:
        """The players act, and see a frame."""
        self.play.act(self.actions[:, self.play.shown : self.play.shown + 1])
        self.frames.append(self.play.frame())
        self.play.ahead()

    def output(self) -> list[Tensor]:
        """The frames."""
        return self.frames
