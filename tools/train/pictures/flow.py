"""Recipe `flow`: a small transformer of Stable Diffusion 3's kind over the emoji's latents, trained by flow matching.

Latents and captions are those of the shipped `emoji-continuous`: its autoencoder and its caption encoder stay as they
are. The result is a folder of a stock pipeline of diffusers, without those two, and features of held-out captions to
call it with; it is not shipped. `python -m tools.bench denoising --model FOLDER` counts the calls that speculative
denoising saves with it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from diffusers import FlowMatchEulerDiscreteScheduler, SD3Transformer2DModel, StableDiffusion3Pipeline
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import mmspec
from mmspec.files import save_sealed
from mmspec.training.loop import LoopOptions, fit
from mmspec.training.work import cached
from mmspec_continuous.pipeline import ContinuousTextToImagePipeline
from tools.train.pictures import captioned as kit
from tools.train.pictures.data import Pictures, pixels
from tools.train.pictures.latents import tokens_of

MODEL = "mmspec/emoji-continuous"
PROMPTS = "held_out_prompts.safetensors"
"""Features of held-out captions, beside the pipeline: `prompt_embeds [n, token, width]`, `pooled_prompt_embeds`."""
ABSENT = dict.fromkeys(("vae", *(f"{part}{i}" for part in ("text_encoder", "tokenizer") for i in ("", "_2", "_3"))))
"""Parts of the stock pipeline that the folder has not."""
Batch = tuple[Tensor, Tensor, Tensor]
"""Latents, features of their captions, and the step's random numbers: `[batch, 1 + channel, row, column]`."""


@dataclass(frozen=True)
class FlowRecipe:
    """Sizes and lengths."""

    heads: int = 4  # attention heads, of 32 numbers each
    layers: int = 4  # blocks
    steps: int = 800  # optimiser steps
    batch: int = 32  # pictures per step
    learning_rate: float = 2e-3  # the largest learning rate
    shift: float = 3.0  # of the sampler's noise levels, as of Stable Diffusion 3
    kept: int = 32  # held-out captions that are stored
    seed: int = 0  # seed of weights and batches


def untrained(recipe: FlowRecipe, channels: int, side: int, width: int) -> SD3Transformer2DModel:
    """The transformer, for latents `[channels, side, side]` and features of `width` numbers."""
    torch.manual_seed(recipe.seed)
    return SD3Transformer2DModel(
        sample_size=side,
        patch_size=1,
        in_channels=channels,
        out_channels=channels,
        num_layers=recipe.layers,
        attention_head_dim=32,
        num_attention_heads=recipe.heads,
        joint_attention_dim=width,
        caption_projection_dim=32 * recipe.heads,
        pooled_projection_dim=width,
        pos_embed_max_size=side,
    )


@torch.no_grad()
def latents_and_features(pipe: ContinuousTextToImagePipeline, pictures: Pictures) -> tuple[Tensor, Tensor]:
    """Latents of unit variance `[picture, channel, row, column]`; features of captions `[picture, token, width]`."""
    latents, features = [], []
    words = kit.tokens_of_captions(pictures.captions, pipe.tokenizer)
    for images, ids, mask in kit.batched(pictures.images, *words):
        tokens = tokens_of(pipe.vae, pixels(images.to(pipe.vae.device)))
        side = round(tokens.shape[1] ** 0.5)
        latents.append(tokens.transpose(1, 2).unflatten(2, (side, side)).cpu())
        found = pipe.text_encoder(ids.to(pipe.vae.device), mask.to(pipe.vae.device)).cpu()
        features.append(found * mask[..., None])
    return torch.cat(latents), torch.cat(features)


def flow_loss(model: nn.Module, batch: Batch) -> Tensor:
    """Squared error of the velocity, noise minus latent, at levels of noise that are uniform."""
    latents, features, random = batch
    noise, level = random[:, 1:], random[:, :1, :1, :1].mul(0.5**0.5).erf().add(1).div(2)
    noisy = (1 - level) * latents + level * noise
    made: Tensor = model(noisy, features, features.mean(1), 1000 * level.flatten(), return_dict=False)[0]
    return F.mse_loss(made.float(), noise - latents)


def train_flow(
    pictures: Pictures, recipe: FlowRecipe, out: Path, work: Path, device: str, say: Callable[[str], None]
) -> float:
    """Train on pictures that are not held out, resuming where training stopped, and write the pipeline.

    Returns:
        The loss of held-out pictures.
    """
    work.mkdir(parents=True, exist_ok=True)
    pipe = mmspec.Pipeline.from_pretrained(MODEL, method="plain", device=device)
    made_of = (pictures.images, *pipe.vae.state_dict().values(), *pipe.text_encoder.state_dict().values())
    latents, features = cached(work / "latents.pt", made_of, lambda: latents_and_features(pipe, pictures))
    model = untrained(recipe, latents.shape[1], latents.shape[2], features.shape[-1]).to(device)
    seen = (~pictures.held_out).nonzero()[:, 0]

    def drawn(chosen: Tensor, g: torch.Generator) -> Batch:
        random = torch.randn(len(chosen), 1 + latents.shape[1], *latents.shape[2:], generator=g)
        return latents[chosen].to(device), features[chosen].to(device), random.to(device)

    def batch_at(step: int) -> Batch:
        g = kit.generator_of(recipe.seed, step)
        return drawn(seen[torch.randint(len(seen), (recipe.batch,), generator=g)], g)

    options = LoopOptions(recipe.steps, recipe.learning_rate, weight_decay=0.02, bf16=False)
    fit(model, batch_at, flow_loss, options, work / "transformer", say)
    kept = pictures.held_out.nonzero()[:, 0]
    with torch.no_grad():
        lost = float(flow_loss(model, drawn(kept, torch.Generator().manual_seed(recipe.seed))))
    scheduler = FlowMatchEulerDiscreteScheduler(shift=recipe.shift, stochastic_sampling=True)
    stock = StableDiffusion3Pipeline(transformer=model.cpu(), scheduler=scheduler, **ABSENT)
    held = features[kept[: recipe.kept]].contiguous()

    def write(side: Path) -> None:
        stock.save_pretrained(side)
        save_file({"prompt_embeds": held, "pooled_prompt_embeds": held.mean(1)}, side / PROMPTS)

    save_sealed(out, write)
    return lost


def load_flow(folder: Path) -> tuple[StableDiffusion3Pipeline, dict[str, Tensor]]:
    """The pipeline of a folder, and features of held-out captions by the names of its arguments.

    Raises:
        ValueError: The folder is another one.
    """
    if not (folder / PROMPTS).is_file():
        raise ValueError(f"{folder} holds no {PROMPTS}: `python -m tools.train flow` writes such a folder")
    return StableDiffusion3Pipeline.from_pretrained(folder, **ABSENT), load_file(folder / PROMPTS)
