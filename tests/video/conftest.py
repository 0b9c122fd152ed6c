"""Tiny random world models whose frames depend on actions, on noise and on all that stands before them."""

import pytest
import torch

from mmspec.core.decoder import Decoder
from mmspec.core.noise import Substream
from mmspec.core.philox import PhiloxNoise, PhiloxSource
from mmspec_video.models.next_frame import NextFrameDiT
from mmspec_video.models.oasis import OasisDiT
from mmspec_video.models.token_world import TokenWorldModel
from mmspec_video.playing.frames import FramePlay
from mmspec_video.sampling import OasisSampler
from mmspec_video.targets.frames import FramesTarget
from tests.support.players import Thinkers

ACTIONS, WINDOW, GIVEN = 4, 5, 2


def lively(model, spread=0.15):
    """Weights that let nothing pass unnoticed; modulations too, which begin at zero."""
    generator = torch.Generator().manual_seed(1)
    for weights in model.parameters():
        weights.data.copy_(torch.randn(weights.shape, generator=generator) * spread)
    return model.eval()


@pytest.fixture(scope="session")
def dit():
    """Ours: 2 × 4 × 4 latents, 2 steps."""
    sizes = dict(channels=2, height=4, width=4, patch=2, dim=32, depth=2, heads=2)
    return lively(NextFrameDiT(**sizes, actions=ACTIONS, frames=WINDOW, steps=2, context_time=0.05))


@pytest.fixture(scope="session")
def oasis():
    """open-oasis's, 2 steps; actions are vectors."""
    sizes = dict(input_h=4, input_w=6, in_channels=2, hidden_size=32, depth=2, num_heads=2, external_cond_dim=6)
    model = lively(OasisDiT(**sizes, max_frames=WINDOW), 0.1)
    model.sampler = OasisSampler(2)
    model.vectors = torch.cat([torch.eye(ACTIONS, 6), torch.zeros(1, 6)])
    return model


@pytest.fixture(scope="session")
def tokens():
    """Frames of 3 × 4 codes out of 10, 4 actions, sequences of 5 frames."""
    sizes = dict(vocab_size=10, actions=ACTIONS, rows=3, columns=4, frames=WINDOW, dim=32, n_layer=2, n_head=2)
    return lively(TokenWorldModel(**sizes, multiple_of=16), 0.3)


@pytest.fixture(scope="session")
def shown():
    """Frames as `FramePlay` shows them, and the play: `shown(model, traces, rule, drafter, k, …)`."""

    def played(model, traces, rule=None, drafter=None, k=0, *, given=False, cache="exact", seed=7, thinks=False):
        """`given`: all actions are known from the start; `thinks`: there is time before every action."""
        traces = torch.as_tensor(traces)
        rows, length = traces.shape
        first = torch.randn(1, GIVEN, *model.frame_shape, generator=torch.Generator().manual_seed(0))
        decoder = Decoder(FramesTarget(model, cache=cache), drafter, rule, k=k)
        seeds = [seed + row for row in range(rows)] if isinstance(seed, int) else seed
        past = torch.zeros(rows, GIVEN - 1, dtype=torch.int64)
        play = FramePlay(decoder, first.expand(rows, -1, -1, -1, -1), past, length, seeds)
        if given:
            play.act(traces)
        frames = []
        for at in range(length):
            if not given:
                play.act(traces[:, at : at + 1])
            frames.append(play.frame())
            if thinks:
                play.ahead()
        return torch.stack(frames, 1), play

    return played


@pytest.fixture
def thinker():
    """`thinker(pipe, trace)`: a player who answers as soon as a frame was made ahead; see `Thinkers`."""
    thinkers = Thinkers()
    yield thinkers.player
    thinkers.leave()


class AskedOfAll:
    """A model without a cache, asked for the frame behind a clip: what the others are compared with."""

    def __init__(self, model, seed):
        self.model, self.key = model, PhiloxSource.seeded([seed], 1).key

    def noise(self, number, step=0, lane=Substream.UNIT):
        at = torch.tensor([[number]])
        return PhiloxNoise(self.key, at, torch.tensor([[step]]), lane).normal(*self.model.frame_shape)[0, 0]

    @torch.no_grad()
    def says(self, model, frames, actions, times, first, seen=None):
        """Of frames `first …`: the whole clip in one pass, as published; times are those of these frames."""
        clip, behind = torch.stack(frames)[None], model.sampler.context_time
        time = torch.tensor([[behind] * first + list(times)])
        return model(clip, time, torch.tensor([actions]), None, seen)[0, first:]


@pytest.fixture(scope="session")
def asked():
    return AskedOfAll


@pytest.fixture(scope="session")
def first_frames(dit):
    """The frames with which every clip of `shown` begins, and what led to each; `ACTIONS` stands for "not known"."""
    frames = torch.randn(1, GIVEN, *dit.frame_shape, generator=torch.Generator().manual_seed(0))[0]
    return list(frames), [ACTIONS] + [0] * (GIVEN - 1)
