"""A walk through the shipped world: `python examples/courts_walk.py walk.mp4` (`pip install 'mmspec[mp4]'`; or a GIF).

Every key is decided when the frame before it was seen, as by a player: here the player walks into the next court, and
turns left.
"""

import sys

import mmspec
from mmspec.shipped import asset
from mmspec_video.recorded import TOUR_CLIP, recorded

KEYS = ["forward"] * 6 + ["left"] * 6


def main(out: str = "walk.mp4", name: str = "four-courts-tokens") -> None:
    pipe = mmspec.Pipeline.from_pretrained(f"mmspec/{name}", method="frame-gs-sjd", k=32)
    first = (recorded([asset(name)], TOUR_CLIP).frames[0, :1] + 1) / 2  # a recorded frame, in [0, 1]
    clip = pipe(first, KEYS, seed=0)
    clip.save(out)
    print(clip.report)


if __name__ == "__main__":
    main(*sys.argv[1:3])
