"""A sheet of emoji: `python examples/emoji_sheet.py out.png`; each is, code by code, that of plain decoding."""

import sys

from diffusers.utils import make_image_grid

import mmspec

PEOPLE = ["princess", "police officer", "construction worker", "man with turban", "mountain bicyclist"]
PROMPTS = [f"{who} skin 4" for who in PEOPLE] + ["father christmas skin 2", "guardsman skin 5", "raised hand skin 3"]


def main(out: str = "emoji_sheet.png") -> None:
    pipe = mmspec.Pipeline.from_pretrained("mmspec/emoji", method="gs-sjd", k=16)
    drawn = pipe(PROMPTS, guidance_scale=3.0, seed=list(range(len(PROMPTS))))
    make_image_grid(drawn.images, rows=2, cols=len(PROMPTS) // 2).save(out)
    print(drawn.report)


if __name__ == "__main__":
    main(*sys.argv[1:2])
