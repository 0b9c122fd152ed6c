"""Clips as pictures: two clips side by side, frame by frame, and some frames of clips below each other."""

from collections.abc import Mapping, Sequence

from diffusers.image_processor import VaeImageProcessor
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

SCALE, GAP, LETTERS = 4, 8, 14
"""Magnification of frames; pixels between pictures; height of the letters."""
EVERY, IN_A_ROW, SMALLER = 4, 9, 2
"""Of a contact sheet: every how many frames one is shown, how many beside each other, and their magnification."""

Clips = Mapping[str, Sequence[Image.Image]]
"""Clips of equal length by their names."""


def pictures(frames: Tensor) -> list[Image.Image]:
    """Pictures of `frames [frame, 3, height, width]` in [0, 1]."""
    made: list[Image.Image] = VaeImageProcessor(do_normalize=False).postprocess(frames, "pil", [False] * len(frames))
    return made


def side_by_side(clips: Clips, actions: Sequence[str]) -> list[Image.Image]:
    """One picture per action: the frames of all clips, with the clips' names above and the action below."""
    font = ImageFont.load_default(LETTERS)
    width, height = (SCALE * side for side in _size(clips))
    line = LETTERS + GAP
    sheets = []
    for number, action in enumerate(actions):
        sheet = Image.new("RGB", (GAP + len(clips) * (width + GAP), 2 * line + height), "white")
        pen = ImageDraw.Draw(sheet)
        for place, (name, frames) in enumerate(clips.items()):
            left = GAP + place * (width + GAP)
            pen.text((left, GAP // 2), name, "black", font)
            sheet.paste(frames[number].resize((width, height), Image.Resampling.NEAREST), (left, line))
        pen.text((GAP, line + height + GAP // 2), f"{number + 1}: {action}", "black", font)
        sheets.append(sheet)
    return sheets


def contact_sheet(clips: Clips) -> Image.Image:
    """Every fourth frame of all clips: below each other what has the same number."""
    font = ImageFont.load_default(LETTERS)
    width, height = (SMALLER * side for side in _size(clips))
    numbers = range(0, len(next(iter(clips.values()))), EVERY)
    line, bands = LETTERS + GAP, -(-len(numbers) // IN_A_ROW)
    band = line + len(clips) * (height + 2) + GAP
    sheet = Image.new("RGB", (GAP + min(IN_A_ROW, len(numbers)) * (width + 2) + GAP, bands * band), "white")
    pen = ImageDraw.Draw(sheet)
    for place, number in enumerate(numbers):
        left, top = GAP + place % IN_A_ROW * (width + 2), place // IN_A_ROW * band
        if not place % IN_A_ROW:
            pen.text((left, top + GAP // 2), f"{' · '.join(clips)}, from frame {number + 1} on", "black", font)
        for row, frames in enumerate(clips.values()):
            shown = frames[number].resize((width, height), Image.Resampling.NEAREST)
            sheet.paste(shown, (left, top + line + row * (height + 2)))
    return sheet


def _size(clips: Clips) -> tuple[int, int]:
    size: tuple[int, int] = next(iter(clips.values()))[0].size
    return size
