"""Train the token model over the codes of its VQ."""

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.training.loop import LoopOptions, fit
from mmspec_video.models.token_world import TokenWorldModel
from tools.train.video.coded import CodedEpisodes
from tools.train.video.recipe import Say, VideoRecipe
from tools.train.video.walking import ACTIONS


def train_tokens(clips: CodedEpisodes, recipe: VideoRecipe, work: Path, device: str, say: Say) -> TokenWorldModel:
    """Train the model by cross-entropy of every code of every frame but the first."""
    torch.manual_seed(recipe.seed + 1)
    model = TokenWorldModel(
        recipe.codes, len(ACTIONS), *recipe.grid, recipe.frames, dim=192, n_layer=5, n_head=6, multiple_of=32
    ).to(device)
    short = recipe.short_share * recipe.token_steps

    def batch_at(step: int) -> tuple[int, Tensor, Tensor]:
        size = (recipe.short_batch, recipe.short_frames) if step < short else (recipe.token_batch, recipe.frames)
        return step, *clips.batch(*size, recipe.batch_seed(1, step), device)

    def loss_of(model: nn.Module, batch: tuple[int, Tensor, Tensor]) -> Tensor:
        step, codes, actions = batch
        true = sequence(codes, actions, recipe.codes)
        seed = recipe.batch_seed(1, step)
        read = drafted(codes, recipe.drafted, seed)
        if step >= short:
            read = mixed(read, drawn(model, codes, true, seed), recipe.drawn, seed)
        return next_code(model, sequence(read, actions, recipe.codes), true)

    options = LoopOptions(recipe.token_steps, 3e-3, warmup=30, hidden="layers.")
    fit(model, batch_at, loss_of, options, work / "tokens", say)
    again = LoopOptions(recipe.whole_steps, 1.5e-3, warmup=30, hidden="layers.")
    fit(model, lambda step: batch_at(recipe.token_steps + step), loss_of, again, work / "tokens-whole", say)
    return model


def sequence(codes: Tensor, actions: Tensor, vocab: int) -> Tensor:
    """Units `[row, frame · (cell + 1)]` of codes `[row, frame, cell]` and actions `[row, frame]` after the frames."""
    return torch.cat([codes, actions[..., None] + vocab], -1).flatten(1)


def drafted(codes: Tensor, share: float, seed: int) -> Tensor:
    """Codes `[row, frame, cell]`; as in drafts, many frames are those before from a random cell on.

    These are a random share of every second frame: what a draft begins with is a whole frame.

    A model that always reads the true codes of the frame that it predicts can tell from them where the player stands,
    and need not read the action; then wrong drafts mislead it, and it rejects right ones behind them.
    """
    g = torch.Generator().manual_seed(seed)
    cells = codes.shape[2]
    first = (cells * torch.rand(*codes.shape[:2], 1, generator=g).square()).long()
    first[torch.rand(first.shape, generator=g) >= share] = cells
    first[:, ::2] = cells
    stale = (torch.arange(cells) >= first).to(codes.device)
    return torch.where(stale, torch.cat([codes[:, :1], codes[:, :-1]], 1), codes)


def mixed(codes: Tensor, others: Tensor, most: float, seed: int) -> Tensor:
    """Codes `[row, frame, cell]`, of which a random share, 0 to `most` per frame, comes from `others`."""
    g = torch.Generator().manual_seed(seed)
    share = most * torch.rand(*codes.shape[:2], 1, generator=g)
    wrong = torch.rand(codes.shape, generator=g) < share
    return torch.where(wrong.to(codes.device), others, codes)


@torch.no_grad()
def drawn(model: nn.Module, codes: Tensor, units: Tensor, seed: int) -> Tensor:
    """The model's samples given true units: codes `[row, frame, cell]`; the first frame stays the true one."""
    probabilities = model(units[:, :-1]).softmax(-1)
    race = torch.empty(probabilities.shape).exponential_(generator=torch.Generator().manual_seed(seed))
    chosen = (probabilities / race.to(probabilities.device)).argmax(-1)
    samples = F.pad(chosen, (1, 0)).unflatten(1, (codes.shape[1], -1))[..., :-1]
    return torch.cat([codes[:, :1], samples[:, 1:]], 1)


def next_code(model: Any, read: Tensor, true: Tensor) -> Tensor:
    """Cross-entropy in nats per code of the true units, given the units that are read; without the first frame."""
    logits, wanted = model(read[:, :-1]), true[:, 1:]
    vocab, period = model.config.vocab_size, model.period
    counts = wanted < vocab
    counts[:, : period - 1] = False
    return F.cross_entropy(logits[counts], wanted[counts])
