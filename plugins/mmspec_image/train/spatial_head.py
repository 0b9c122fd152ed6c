"""`mmspec train image-head`: a head for `spatial-head` (SSD, arXiv 2606.20543), on the states of a frozen transformer.

The paper's loss is smooth-L1 between predicted and true states. Here the divergence of the distributions that the
output layer makes of them is added: with both, the distributions overlap more after as many steps.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.kits.pictures.data import Pictures, pixels
from mmspec.kits.pictures.models.blocks import teacher_forced
from mmspec.kits.pictures.prompts import encode
from mmspec.training.loop import LoopOptions, fit
from mmspec.training.work import cached
from mmspec_image.models.llamagen import LlamaGenTransformer
from mmspec_image.models.spatial_head import SpatialHead
from mmspec_image.pipeline import TextToImagePipeline


@dataclass(frozen=True)
class HeadRecipe:
    """Sizes and lengths."""

    # Pictures that are read; their states are kept in memory and in the work folder, in half precision
    pictures: int = 1000
    steps: int = 1000
    batch: int = 8  # pictures per step
    learning_rate: float = 3e-3  # the largest learning rate
    hidden: int = 512  # width of the head's feed-forward layer
    seed: int = 0  # seed of weights and batches


@torch.no_grad()
def states_of(pipe: TextToImagePipeline, pictures: Pictures, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """What the codes of the `chosen [n]` pictures were drawn from, and the codes.

    Returns:
        States behind the final norm, with and without the caption, `[n, 2, cell, dim]` float16; codes `[n, cell]`.
    """
    model, states, codes = pipe.transformer, [], []
    for part in chosen.split(16):
        captions = [pictures.captions[i] for i in part.tolist()]
        features, mask = encode(captions, pipe.tokenizer, pipe.text_encoder, model.config.cls_token_num, model.device)
        units = pipe.vq.encode(pixels(pictures.images[part]).to(model.device)).codes.flatten(1)
        given = torch.cat([model.cls_embedding(of) for of in (features, model.cls_embedding.null(len(part)))])
        hidden = teacher_forced(model, given, units.repeat(2, 1), mask.repeat(2, 1))
        halves = model.norm(hidden).split(len(part))
        states.append(torch.stack(halves, 1).half().cpu())
        codes.append(units.cpu())
    return torch.cat(states), torch.cat(codes)


def predicted(head: nn.Module, model: LlamaGenTransformer, states: Tensor, codes: Tensor) -> Tensor:
    """The head's states of all codes below the first row: `[n, 2, cell - grid, dim]`; arguments as `states_of` has."""
    grid = model.config.grid
    units = model.embed(codes)[:, None].expand(-1, 2, -1, -1)
    cells = codes.shape[1] - grid
    above, right = slice(0, cells), slice(1, cells + 1)
    ahead: Tensor = head(states[:, :, above], states[:, :, right], units[:, :, above], units[:, :, right])
    return ahead


def loss_of(head: nn.Module, model: LlamaGenTransformer, states: Tensor, codes: Tensor) -> Tensor:
    """Smooth-L1 of the states, and KL of the distributions, summed; means over halves and codes."""
    ahead, true = predicted(head, model, states, codes), states[:, :, model.config.grid :]
    q, p = (model.output(of).log_softmax(-1) for of in (ahead, true))
    return F.smooth_l1_loss(ahead, true) + F.kl_div(q, p, log_target=True, reduction="none").sum(-1).mean()


@torch.no_grad()
def overlap(head: nn.Module, model: LlamaGenTransformer, states: Tensor, codes: Tensor, guidance: float) -> float:
    """Mean of Σ min(p, q) below the first row, which is how often an exact rule keeps the head's draw at once."""
    ahead, true = predicted(head, model, states, codes), states[:, :, model.config.grid :]

    def probs(of: Tensor) -> Tensor:
        given, null = model.output(of).unbind(1)
        return (null + guidance * (given - null)).softmax(-1)

    return float(torch.minimum(probs(ahead), probs(true)).sum(-1).mean())


def train_head(
    pipe: TextToImagePipeline, pictures: Pictures, recipe: HeadRecipe, work: Path, say: Callable[[str], None]
) -> SpatialHead:
    """Train a head on pictures that are not held out, resuming where training stopped; the pipeline stays as it is."""
    work.mkdir(parents=True, exist_ok=True)
    model = pipe.transformer
    seen = (~pictures.held_out).nonzero()[:, 0]
    chosen = seen[torch.randperm(len(seen), generator=_generator_of(recipe.seed, 0))[: recipe.pictures]]
    made_of = (*model.state_dict().values(), chosen)
    states, codes = cached(work / "states.pt", made_of, lambda: states_of(pipe, pictures, chosen))
    torch.manual_seed(recipe.seed)
    head = SpatialHead(model.config.dim, recipe.hidden).to(model.device)
    nn.init.zeros_(head.feed_forward.w2.weight)

    def batch_at(step: int) -> tuple[Tensor, Tensor]:
        some = torch.randint(len(codes), (recipe.batch,), generator=_generator_of(recipe.seed, 1 + step))
        return states[some].to(model.device).float(), codes[some].to(model.device)

    options = LoopOptions(recipe.steps, recipe.learning_rate, weight_decay=0.01, bf16=False)
    fit(head, batch_at, lambda trained, batch: loss_of(trained, model, *batch), options, work / "head", say)
    return head.eval()


def _generator_of(seed: int, step: int) -> torch.Generator:
    """The random numbers of one training step."""
    return torch.Generator().manual_seed(seed * 1_000_003 + step)
