"""`mmspec train video`: sizes and lengths, and the names of what is shipped."""

from collections.abc import Callable
from dataclasses import dataclass

Say = Callable[[str], None]
"""Receives progress lines."""
TOKENS, DENOISED, STUDENT = "four-courts-tokens", "four-courts", "student"
"""Folders of the shipped models; the student's is inside of its teacher's."""
CLIPS, TOUR_CLIP = "clips.npz", "tour.npz"
"""Recorded clips, and one of a walk through all of the world; in the denoising model's folder."""


@dataclass(frozen=True)
class VideoRecipe:
    """Sizes and lengths. Training takes about three hours of one core; the shipped files have 14 MB.

    Attributes:
        episodes: Episodes to render.
        length: Frames of an episode.
        height: Height of a frame in pixels, a multiple of 8.
        width: Width of a frame in pixels, a multiple of 8.
        codes: Codebook entries of the token model's VQ.
        channels: Channels of the denoising model's latents.
        frames: Frames of either model's window.
        vq_steps: Training steps of the VQ.
        vq_batch: Frames in its batches.
        vae_steps: Training steps of the denoising model's autoencoder.
        vae_batch: Frames in its batches.
        token_steps: Training steps of the token model.
        whole_steps: Further steps, with a learning rate that rises again (arXiv 1608.03983), of whole windows.
        token_batch: Clips in its batches, each a whole window.
        short_share: Share of its steps, from the first on, with short clips instead: many clips in a batch are more
            varied than the frames of few.
        short_batch: Clips in a batch of short clips.
        short_frames: Frames of a short clip.
        drafted: Share of every second frame whose codes are read, from a random one on, as drafts of them begin: as
            those of the frame before. Without them, the model tells a frame from its own first codes and not from the
            action, and one wrong draft spoils all behind it.
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

    episodes: int = 240
    length: int = 200
    height: int = 48
    width: int = 64
    codes: int = 512
    channels: int = 16
    frames: int = 8
    vq_steps: int = 2000
    vq_batch: int = 16
    vae_steps: int = 2000
    vae_batch: int = 16
    token_steps: int = 3200
    whole_steps: int = 900
    token_batch: int = 12
    short_share: float = 0.75
    short_batch: int = 36
    short_frames: int = 2
    drafted: float = 0.75
    drawn: float = 0.5
    dit_steps: int = 4800
    dit_batch: int = 12
    student_steps: int = 200
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
