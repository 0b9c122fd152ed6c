"""A walk through the shipped world: `python examples/maze_walk.py walk.mp4` (`pip install 'mmspec[mp4]'`; GIF without).

Every key is decided when the frame before it was seen, as by a player: here the player turns left and walks on.
"""

import sys

import mmspec
from mmspec.shipped import asset
from mmspec_video.bench.clips import recorded

KEYS = ["left"] * 4 + ["forward"] * 6 + ["right"] * 4


def main(out: str = "walk.mp4", name: str = "my-way-home-tokens") -> None:
    pipe = mmspec.Pipeline.from_pretrained(f"mmspec/{name}", method="frame-gs-sjd")
    first = (recorded([asset(name)]).frames[1, :1] + 1) / 2  # a recorded frame, in [0, 1]
    clip = pipe(first, KEYS, seed=0)
    clip.save(out)
    print(clip.report)


if __name__ == "__main__":
    main(*sys.argv[1:3])
