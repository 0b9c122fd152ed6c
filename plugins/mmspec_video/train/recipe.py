"""`mmspec train video`: sizes and lengths, and the names of what is shipped."""

from collections.abc import Callable
from dataclasses import dataclass

Say = Callable[[str], None]
"""Receives progress lines."""
TOKENS, DENOISED, STUDENT = "my-way-home-tokens", "my-way-home", "student"
"""Folders of the shipped models; the student's is inside of its teacher's."""
CLIPS = "clips.npz"
"""Recorded clips, in the denoising model's folder."""


@dataclass(frozen=True)
class VideoRecipe:
    """Sizes and lengths. Training takes about an hour and a half on two cores; the shipped files have 14 MB.

    Attributes:
        episodes: Episodes to render.
        length: Frames of an episode.
        height: Height of a frame in pixels, a multiple of 8.
        width: Width of a frame in pixels, a multiple of 8.
        codes: Codebook entries of the denoising model's VQ.
        token_codes: Codebook entries of the token model's VQ: fewer are coarser, and easier to predict.
        frames: Frames of either model's window.
        vq_steps: Training steps of the denoising model's VQ.
        token_vq_steps: Training steps of the token model's VQ.
        vq_batch: Frames in a batch of either VQ.
        token_steps: Training steps of the token model.
        token_batch: Clips in its batches, each a whole window.
        short_share: Share of its steps, from the first on, with short clips instead: many clips in a batch are more
            varied than the frames of few.
        short_batch: Clips in a batch of short clips.
        short_frames: Frames of a short clip.
        drawn: In whole windows, the largest share of codes that are the model's own samples given true codes (parallel
            scheduled sampling, arXiv 1906.04331): a model trained on true codes only drifts on frames of its own.
        dit_steps: Training steps of the denoising model.
        dit_batch: Clips in its batches.
        student_steps: Training steps of its student.
        student_batch: Clips in the student's batches.
        rank: Rank of the student's differences.
        jumps: The student's steps from noise to a frame.
        seed: Seed of the world, of weights and of batches.
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
        """Rows and columns of a frame's codes."""
        return self.height // 8, self.width // 8

    def batch_seed(self, part: int, step: int) -> int:
        """Seed of one step's batch, different in every part of the recipe."""
        return (self.seed * 4 + part) * 1_000_003 + step
