"""What the conformance kit tries the video components on: a tiny token world, and a simulated player."""

from collections.abc import Sequence
from functools import cache

import torch

from mmspec.testing.conformance.example import Example
from mmspec.testing.toys.markov import MarkovTarget
from mmspec_video.models.token_world import TokenWorldModel
from mmspec_video.targets.token_frames import Clip, TokenFramesTarget

CODES, ACTIONS, ROWS, COLUMNS = 6, 3, 2, 3


@cache
def _tiny() -> TokenWorldModel:
    """Weights large enough that codes depend on what stands before them; many frames, for the kit's long calls."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = TokenWorldModel(CODES, ACTIONS, ROWS, COLUMNS, 30, dim=32, n_layer=2, n_head=2, multiple_of=16)
        for weights in model.parameters():
            weights.data.copy_(torch.randn_like(weights) * (0.4 if weights.dim() > 1 else 1.0))
    return model.eval()


def token_frames() -> Example:
    """One frame and an action; the kit lets units follow as they come."""

    def prompt(rows: Sequence[int]) -> Clip:
        cells = torch.arange(ROWS * COLUMNS)
        frames = torch.stack([(cells * (row % 5 + 1) + row) % CODES for row in rows])
        return Clip(frames[:, None], torch.tensor([[row % ACTIONS] for row in rows]))

    return Example(target=TokenFramesTarget(_tiny()), prompt=prompt)


class Player(MarkovTarget):
    """A player whose actions a Markov chain draws: drafters of actions guess them as they would a person's."""

    offers = MarkovTarget.offers | {"external"}


def player() -> Example:
    """Some actions, and the next ones have to be guessed."""

    def prompt(rows: Sequence[int]) -> torch.Tensor:
        return torch.tensor([[row % 4, row % 3, (row + 1) % 4] for row in rows])

    return Example(target=Player.random(4, seed=0), prompt=prompt)
