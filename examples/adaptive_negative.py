"""A judge that sees a picture grow and says what should not be in it: `python examples/adaptive_negative.py out.png`.

The judge is a toy: it names the colour that it sees most of. A vision-language model would be asked in its place. The
sheet shows every picture without the judge (above) and with it (below), for the same seeds.
"""

import sys

import numpy as np
from diffusers.utils import make_image_grid
from PIL import Image

import mmspec

PROMPTS = ["large circle", "boy", "large circle", "police officer", "construction worker", "large circle"]
COLOURS = {"red": (1, 0, 0), "green": (0, 1, 0), "blue": (0, 0, 1), "yellow": (1, 1, 0)}


def colour_of(picture: Image.Image) -> str | None:
    """The colour of most coloured pixels; None where there are few."""
    pixels = np.asarray(picture.convert("RGB")).reshape(-1, 3) / 255
    coloured = pixels[pixels.max(1) - pixels.min(1) > 0.3]
    if len(coloured) < 0.05 * len(pixels):
        return None
    table = np.array(list(COLOURS.values()))
    nearest = ((coloured[:, None] - table) ** 2).sum(-1).argmin(1)
    return list(COLOURS)[int(np.bincount(nearest, minlength=len(table)).argmax())]


def main(out: str) -> None:
    pipe = mmspec.Pipeline.from_pretrained("mmspec/emoji", method="gs-sjd")
    seeds, rows = list(range(len(PROMPTS))), []
    for away in (None, mmspec.AdaptiveNegative(colour_of)):
        call = {} if away is None else {"callback_on_step_end": away, "steer_every": 32}
        drawn = pipe(PROMPTS, guidance_scale=4.0, seed=seeds, **call)
        rows += drawn.images
        print(drawn.report if away is None else [(PROMPTS[row], at, words) for at, row, words in away.said])
    make_image_grid(rows, rows=2, cols=len(PROMPTS)).save(out)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "adaptive_negative.png")
