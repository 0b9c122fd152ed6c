"""`mmspec train video`: sizes and lengths."""

from collections.abc import Callable
from dataclasses import dataclass

Say = Callable[[str], None]


@dataclass(frozen=True)
class VideoRecipe:
    """Sizes and lengths: all of it takes about an hour and a half on two cores, and what is shipped has 14 MB.

    Attributes:
        episodes: Rendered.
        length: Frames of each.
        height: Of a frame, in pixels; a multiple of 8.
        width: Of a frame, in pixels; a multiple of 8.
        codes: Entries of the codebook of the denoising model's VQ.
        token_codes: Of the token model's: fewer are coarser, and easier to predict.
        frames: Of every model's window.
        vq_steps: Steps of the denoising model's VQ.
        token_vq_steps: Of the token model's.
        vq_batch: Pictures of each.
        token_steps: Steps of the token model.
        token_batch: Clips of each, of whole windows.
        short_share: Of these steps, the first ones, that see short clips instead: many, which differ from each other
            more than the frames of one clip do.
        short_batch: Clips of each.
        short_frames: Of these clips.
        drawn: In whole windows, the largest share that it reads as what it draws itself behind true ones (parallel
            scheduled sampling, arXiv 1906.04331): who has read true codes only is soon lost behind frames of its own.
        dit_steps: Steps of the denoising model.
        dit_batch: Clips of each.
        student_steps: Steps of its student.
        student_batch: Clips of each.
        rank: Of the student's differences.
        jumps: Of the student, from noise to a frame.
        seed: Of the world, of weights and of batches.
    """

    episodes: int = 480
    length: int = 200
    height: int = 48
    width: int = 64
    codes: int = 512
    token_codes: int = 64
    frames: int = 8
    vq_steps: int = 2000
    token_vq_steps: int = 700
    vq_batch: int = 32
    token_steps: int = 6000
    token_batch: int = 12
    short_share: float = 0.75
    short_batch: int = 24
    short_frames: int = 3
    drawn: float = 0.5
    dit_steps: int = 4000
    dit_batch: int = 12
    student_steps: int = 350
    student_batch: int = 8
    rank: int = 4
    jumps: int = 2
    seed: int = 0

    @property
    def grid(self) -> tuple[int, int]:
        """Codes of a frame: rows and columns."""
        return self.height // 8, self.width // 8

    def batch_seed(self, part: int, step: int) -> int:
        """Of one step's batch; the parts of the recipe see other ones."""
        return (self.seed * 4 + part) * 1_000_003 + step
