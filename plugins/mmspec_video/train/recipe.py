"""`mmspec train video`: sizes and lengths, the VQs, and the token model over the codes of one."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.models.vq import LlamaGenVQ
from mmspec.pictures.data import pixels
from mmspec.training.loop import LoopOptions, fit
from mmspec_video.models.token_world import TokenWorldModel
from mmspec_video.train.beginning import begin
from mmspec_video.train.codebook import Restarts
from mmspec_video.train.world import ACTIONS, World

Say = Callable[[str], None]
CODES_FILE = "codes.pt"
PART = 128
"""Pictures that are encoded at once."""
RESTART = 50
"""Steps after which entries of the codebook that nothing used are put elsewhere."""


@dataclass(frozen=True)
class VideoRecipe:
    """Sizes and lengths: all of it takes about 80 minutes on two cores, and what is shipped has 14 MB.

    Attributes:
        episodes: Rendered.
        length: Frames of each.
        height: Of a frame, in pixels; a multiple of 8.
        width: Of a frame, in pixels; a multiple of 8.
        codes: Entries of the codebook.
        frames: Of every model's window.
        vq_steps: Steps of each VQ.
        vq_batch: Pictures of each.
        token_steps: Steps of the token model.
        token_batch: Clips of each.
        mistaken: Largest share of a frame's codes that the token model reads as those of the frame before, between none
            and that. Drafts begin so; and who has read true codes only is soon lost behind frames of its own.
        dit_steps: Steps of the denoising model.
        dit_batch: Clips of each.
        student_steps: Steps of its student.
        student_batch: Clips of each.
        rank: Of the student's differences.
        jumps: Of the student, from noise to a frame.
        seed: Of the world, of weights and of batches.
    """

    episodes: int = 120
    length: int = 200
    height: int = 48
    width: int = 64
    codes: int = 512
    frames: int = 8
    vq_steps: int = 2000
    vq_batch: int = 32
    token_steps: int = 2900
    token_batch: int = 12
    mistaken: float = 0.25
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


@dataclass(frozen=True)
class Clips:
    """Codes and actions of all episodes, and which of them are for training.

    Attributes:
        codes: `[episode, frame, cell]` int16.
        actions: `[episode, frame]` int64: action `i` leads from frame `i` to frame `i + 1`.
        seen: `[episode]` int64: those that are trained on.
    """

    codes: Tensor
    actions: Tensor
    seen: Tensor

    def batch(self, rows: int, frames: int, seed: int, device: str) -> tuple[Tensor, Tensor]:
        """Some clips: codes `[row, frame, cell]` int64, and the actions behind each frame `[row, frame]`."""
        g = torch.Generator().manual_seed(seed)
        episode = self.seen[torch.randint(len(self.seen), (rows, 1), generator=g)]
        first = torch.randint(self.codes.shape[1] - frames + 1, (rows, 1), generator=g)
        at = first + torch.arange(frames)
        return self.codes[episode, at].long().to(device), self.actions[episode, at].to(device)


def train_vq(world: World, recipe: VideoRecipe, restart: bool, folder: Path, device: str, say: Say) -> LlamaGenVQ:
    """A VQ: absolute and squared error of pixels, and the codebook's loss; 8 × 8 pixels a code.

    Args:
        world: What it learns from.
        recipe: Sizes and lengths.
        restart: Bring entries back that nothing uses. Pictures get better, and codes worse to predict: which of many
            that look the same comes next is chance. So denoising has such a codebook, and the token model has not.
        folder: For checkpoints.
        device: Where.
        say: Where progress lines go.
    """
    torch.manual_seed(recipe.seed)
    vq = LlamaGenVQ(
        recipe.codes,
        ch=32,
        encoder_ch_mult=(1, 1, 2, 4),
        decoder_ch_mult=(1, 1, 2, 2),
        z_channels=64,
        num_res_blocks=1,
        local=True,
    ).to(device)
    frames = world.frames[~world.held_out].flatten(0, 1)

    def batch_at(step: int) -> tuple[int, Tensor]:
        g = torch.Generator().manual_seed(recipe.seed * 1_000_003 + step)
        return step, pixels(frames[torch.randint(len(frames), (recipe.vq_batch,), generator=g)]).to(device)

    restarts = Restarts(vq, RESTART, recipe.vq_steps // 2 if restart else 0, recipe.seed)

    def loss_of(model: nn.Module, batch: tuple[int, Tensor]) -> Tensor:
        step, pictures = batch
        restarts.before(step, pictures)
        made, quantised = model(pictures)
        restarts.after(quantised.codes)
        error = made.float() - pictures
        return error.abs().mean() + error.square().mean() + quantised.loss.float()

    fit(vq, batch_at, loss_of, LoopOptions(recipe.vq_steps, 1e-3, weight_decay=0.0), folder, say)
    return vq


@torch.no_grad()
def encoded(vq: LlamaGenVQ, world: World, folder: Path, device: str) -> Clips:
    """Codes of all frames; kept in the VQ's folder."""
    kept = folder / CODES_FILE
    if not kept.is_file():
        vq.eval()
        parts = world.frames.flatten(0, 1).split(PART)
        codes = torch.cat([vq.encode(pixels(part).to(device)).codes.flatten(1).cpu() for part in parts])
        torch.save(codes.to(torch.int16).unflatten(0, world.frames.shape[:2]), kept)
    codes = torch.load(kept, weights_only=True)
    return Clips(codes, world.actions, (~world.held_out).nonzero()[:, 0])


def train_tokens(
    clips: Clips, vq: LlamaGenVQ, recipe: VideoRecipe, work: Path, device: str, say: Say
) -> TokenWorldModel:
    """The token model: cross-entropy of every code of every frame but the first."""
    torch.manual_seed(recipe.seed + 1)
    model = TokenWorldModel(
        recipe.codes, len(ACTIONS), *recipe.grid, recipe.frames, dim=160, n_layer=7, n_head=5, multiple_of=32
    )
    begin(model, vq.quantize.entries.cpu())
    model.to(device)

    def batch_at(step: int) -> tuple[Tensor, Tensor]:
        seed = _seed(recipe, 1, step)
        codes, actions = clips.batch(recipe.token_batch, recipe.frames, seed, device)
        read = mistaken(codes, recipe.mistaken, seed)
        return sequence(read, actions, recipe.codes), sequence(codes, actions, recipe.codes)

    options = LoopOptions(recipe.token_steps, 2e-3, warmup=100)
    fit(model, batch_at, next_code, options, work / "tokens", say)
    return model


def sequence(codes: Tensor, actions: Tensor, vocab: int) -> Tensor:
    """Units `[row, frame · (cell + 1)]` of codes `[row, frame, cell]` and the actions behind each frame."""
    return torch.cat([codes, actions[..., None] + vocab], -1).flatten(1)


def mistaken(codes: Tensor, most: float, seed: int) -> Tensor:
    """Codes `[row, frame, cell]` of which a share, between none and `most` of each frame's, are the frame before's."""
    g = torch.Generator().manual_seed(seed)
    share = most * torch.rand(*codes.shape[:2], 1, generator=g)
    wrong = torch.rand(codes.shape, generator=g) < share
    before = torch.cat([codes[:, :1], codes[:, :-1]], 1)
    return torch.where(wrong.to(codes.device), before, codes)


def next_code(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Cross-entropy in nats per code of true units behind those that are read.

    No action is predicted, nor the first frame, before which there is nothing.
    """
    read, true = batch
    logits, wanted = model(read[:, :-1]), true[:, 1:]
    vocab, period = model.config.vocab_size, model.period
    counts = wanted < vocab
    counts[:, : period - 1] = False
    return F.cross_entropy(logits[counts], wanted[counts])


def _seed(recipe: VideoRecipe, part: int, step: int) -> int:
    """Of one step's batch; the parts of the recipe see other ones."""
    return (recipe.seed * 4 + part) * 1_000_003 + step
