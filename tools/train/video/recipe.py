"""Recipe `video`: sizes and lengths."""

from collections.abc import Callable
from dataclasses import dataclass

Say = Callable[[str], None]
"""Receives progress lines."""


@dataclass(frozen=True)
class VideoRecipe:
    """Sizes and lengths. Training takes about three hours of one core; the shipped files have 14 MB."""

    episodes: int = 240  # episodes to render
    length: int = 200  # frames of an episode
    height: int = 48  # height of a frame in pixels, a multiple of 8
    width: int = 64  # width of a frame in pixels, a multiple of 8
    codes: int = 512  # codebook entries of the token model's VQ
    channels: int = 16  # channels of the denoising model's latents
    frames: int = 8  # frames of either model's window
    vq_steps: int = 2000  # training steps of the VQ
    vq_batch: int = 16  # frames in its batches
    vae_steps: int = 2000  # training steps of the denoising model's autoencoder
    vae_batch: int = 16  # frames in its batches
    token_steps: int = 3200  # training steps of the token model
    whole_steps: int = 900  # further steps, with a learning rate that rises again (arXiv 1608.03983), of whole windows.
    token_batch: int = 12  # clips in its batches, each a whole window
    # Share of its steps, from the first on, with short clips instead: many clips in a batch are more varied than the
    # frames of few
    short_share: float = 0.75
    short_batch: int = 36  # clips in a batch of short clips
    short_frames: int = 2  # frames of a short clip
    # Share of every second frame whose codes are read, from a random one on, as drafts of them begin: as those of the
    # frame before. Without them, the model tells a frame from its own first codes and not from the action, and one
    # wrong draft spoils all behind it.
    drafted: float = 0.75
    # In whole windows, the largest share of codes that are the model's own samples given true codes (parallel scheduled
    # sampling, arXiv 1906.04331): a model trained on true codes only drifts on frames of its own.
    drawn: float = 0.5
    dit_steps: int = 4800  # training steps of the denoising model
    dit_batch: int = 12  # clips in its batches
    student_steps: int = 200  # training steps of its student
    student_batch: int = 8  # clips in the student's batches
    rank: int = 4  # rank of the student's differences
    jumps: int = 2  # the student's steps from noise to a frame
    seed: int = 0  # seed of the world, of weights and of batches

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of a frame's codes."""
        return self.height // 8, self.width // 8

    def batch_seed(self, part: int, step: int) -> int:
        """Seed of one step's batch, different in every part of the recipe."""
        return (self.seed * 4 + part) * 1_000_003 + step
