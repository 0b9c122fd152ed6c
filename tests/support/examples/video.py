"""Video: a tiny token world, and a simulated player."""

from collections.abc import Sequence
from functools import cache

import torch

from mmspec.testing import Example
from mmspec.testing.toys.markov import MarkovTarget
from mmspec_video.models.token_world import TokenWorldModel
from mmspec_video.targets.token_frames import TokenFramesTarget, TokenPrompt

CODES, ACTIONS, ROWS, COLUMNS = 6, 3, 2, 3


@cache
def _tiny() -> TokenWorldModel:
    """A model whose weights are large enough for codes to depend on their context, with room for long calls."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = TokenWorldModel(CODES, ACTIONS, ROWS, COLUMNS, 30, dim=32, n_layer=2, n_head=2, multiple_of=16)
        for weights in model.parameters():
            weights.data.copy_(torch.randn_like(weights) * (0.4 if weights.dim() > 1 else 1.0))
    return model.eval()


def token_frames() -> Example:
    """A token world; the prompt is one frame and an action."""

    def prompt(rows: Sequence[int]) -> TokenPrompt:
        cells = torch.arange(ROWS * COLUMNS)
        frames = torch.stack([(cells * (row % 5 + 1) + row) % CODES for row in rows])
        return TokenPrompt(frames[:, None], torch.tensor([[row % ACTIONS] for row in rows]))

    return Example(target=TokenFramesTarget(_tiny()), prompt=prompt)


class Player(MarkovTarget):
    """A player whose actions are drawn from a Markov chain, for drafters that guess actions."""

    offers = MarkovTarget.offers | {"external"}


def player() -> Example:
    """A player; the prompt is three actions."""

    def prompt(rows: Sequence[int]) -> torch.Tensor:
        return torch.tensor([[row % 4, row % 3, (row + 1) % 4] for row in rows])

    return Example(target=Player.random(4, seed=0), prompt=prompt)


EXAMPLES = {
    "video:token-frames": token_frames,
    **dict.fromkeys(("video:action-repeat", "video:action-model", "video:nfd", "video:student"), player),
}
