"""Tiny random world models whose frames depend on actions, on noise and on all that stands before them."""

import pytest
import torch

from mmspec_video.models.next_frame import NextFrameDiT
from mmspec_video.models.oasis import OasisDiT
from mmspec_video.models.token_world import TokenWorldModel
from mmspec_video.sampling import OasisSampler

ACTIONS, WINDOW = 4, 5


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
