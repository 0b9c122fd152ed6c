"""A picture whose cells are tinted by the round that emitted their unit."""

import torch
from PIL import Image
from torch import Tensor

RAMP = ("440154", "472d7b", "3b528b", "2c728e", "21918c", "28ae80", "5ec962", "addc30", "fde725")
"""Even steps of viridis, dark to light, from the first round to the last; brightness alone tells them apart, too."""
CELL = 16
"""Least pixels per side of a cell."""
TINT = 0.65
"""Share of the round's colour in a pixel; the rest is the picture in grey."""
SHADE = 0.75
"""Brightness of every other round, so that cells of one round are seen as a group."""


def traced(picture: Image.Image, rounds: Tensor) -> Image.Image:
    """The picture in grey under the colours of its rounds; cells that no round reached are darker grey.

    Args:
        picture: A square picture, a whole number of pixels per cell.
        rounds: `[grid, grid]` int64: the round of every unit, -1 where there is none.
    """
    grid = len(rounds)
    side = picture.width * -(-CELL * grid // picture.width)
    large = picture.convert("L").resize((side, side), Image.Resampling.NEAREST)
    grey = torch.frombuffer(bytearray(large.tobytes()), dtype=torch.uint8).view(side, side, 1).float()
    tint = colours(rounds).repeat_interleave(side // grid, 0).repeat_interleave(side // grid, 1)
    shown = (1 - TINT) * grey + TINT * tint
    return Image.fromarray(shown.round().to(torch.uint8).numpy(), "RGB")


def colours(rounds: Tensor) -> Tensor:
    """`[grid, grid, 3]` in 0 … 255; black where there is no round."""
    ramp = torch.tensor([list(bytes.fromhex(colour)) for colour in RAMP]).float()
    rounds = rounds.cpu()
    place = rounds.clamp(min=0) / rounds.max().clamp(min=1) * (len(ramp) - 1)
    low = place.long().clamp(max=len(ramp) - 2)
    share = (place - low)[..., None]
    mixed = ramp[low] * (1 - share) + ramp[low + 1] * share
    light = torch.where(rounds < 0, 0, torch.where(rounds % 2 == 0, 1, SHADE))
    return mixed * light[..., None]
