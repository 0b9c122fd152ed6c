"""What is drawn, and by whom, unless the command line says otherwise."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mmspec.core.warp import Warp
from mmspec_image.bench.defaults import BATCH, PROMPTS, REPEATS, WINDOW

HELD_OUT = (
    "earth globe asia australia",
    "white sun behind cloud",
    "rose",
    "french fries",
    "trophy",
    "elephant",
    "ok hand sign skin 5",
    "athletic shoe",
    "ghost",
    "sparkling heart",
    "clock face three oclock",
    "relieved face",
    "vertical traffic light",
    "flying saucer",
    "croissant",
    "hot beverage",
)
"""Captions of pictures that the model was not trained on."""
SEEN = (
    "heavy black heart",
    "red apple",
    "cat face",
    "rocket",
    "smiling face with sunglasses",
    "slice of pizza",
    "police officer skin 4",
    "house building",
    "penguin",
    "guitar",
    "evergreen tree",
    "thumbs up sign skin 5",
    "umbrella",
    "soccer ball",
    "blue book",
    "birthday cake",
)
"""Captions of pictures that it was."""
CAPTIONS = tuple(caption for pair in zip(SEEN, HELD_OUT, strict=True) for caption in pair)

WINDOWS = (4, 8, 12, 16, 24, 32, 64)
METHODS = ("gs-sjd", "mc-sjd", "sjd", "gsd", "lantern")
SWEPT = "gs-sjd"
"""The method that is tried at every window; the others at the same one, so that they compare."""
NARROW = 4
"""A window for batches: many rows fill a pass by themselves."""

NOTES: Mapping[str, str] = {
    "same_as_plain": "share of the pictures that are plain decoding's, code by code",
    "step_compression": "passes of plain decoding / own passes",
    "foreground": "share of the codes that show something; the pixels of all others are blank",
    "compression_foreground": "step compression of the codes that show something; every pass is charged to the one "
    "code that it drew itself, the one at which its accepted drafts end",
    "frechet": "distance to the training pictures in the features of a small network; few pictures make it large, so "
    "it compares with the other seeds of plain decoding, as many pictures each",
    "caption_score": "mean cosine of pictures and captions in those features",
    "tv": "of a lossy rule, mean total variation per code",
    "altered": "of a lossy rule, codes a picture that are expected to be others than the model's",
    "eased": "of a lossy rule, its acceptance less an exact rule's, per draft that was decided",
}


@dataclass(frozen=True)
class Setting:
    """How codes are drawn.

    Attributes:
        guidance: Scale of classifier-free guidance; 1 is none.
        temperature: Of sampling.
        whole: Whether windows are swept, the oracle runs, memory is measured, and batches are tried.
    """

    guidance: float
    temperature: float = 1.0
    whole: bool = False

    @property
    def name(self) -> str:
        """What it is called in a result."""
        return f"guidance {self.guidance:g}, T = {self.temperature:g}"

    @property
    def guided(self) -> bool:
        """Whether there is an unconditional half."""
        return self.guidance != 1

    @property
    def warp(self) -> Warp:
        """From logits to laws."""
        return Warp.sampling(self.temperature, guidance=self.guidance if self.guided else None)


SETTINGS = (Setting(3.0, whole=True), Setting(1.0))


@dataclass(frozen=True)
class BenchOptions:
    """How long a benchmark takes.

    Attributes:
        prompts: Captions of a repeat.
        repeats: Counted repeats; each has captions of its own, and all captions have been drawn after four of eight.
        window: Codes drafted per round.
        batch: Rows of the batch that is compared with its rows alone; 0 leaves it out.
        seed: Of the first picture; the others count up.
        floors: Sets of pictures that plain decoding draws with other seeds.
    """

    prompts: int = PROMPTS
    repeats: int = REPEATS
    window: int = WINDOW
    batch: int = BATCH
    seed: int = 0
    floors: int = 3


def methods_of(chosen: tuple[str, ...], options: BenchOptions, sweep: bool) -> dict[str, dict[str, Any]]:
    """Our contestants beside plain decoding: a method and its options each, by the name that a result gives them."""
    made: dict[str, dict[str, Any]] = {name: {"method": name, "k": options.window} for name in chosen}
    if sweep and SWEPT in chosen:
        others = [window for window in WINDOWS if window != options.window]
        made |= {windowed(SWEPT, window): {"method": SWEPT, "k": window} for window in others}
    return made


def windowed(method: str, window: int) -> str:
    """What a method is called at a window that is not everybody's."""
    return f"{method}, window {window}"
