"""What was trained, as a folder that the pipeline's `from_pretrained` reads, with its facts beside the weights."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKL
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from mmspec.kits.pictures import ship
from mmspec.kits.pictures.data import Pictures
from mmspec.kits.pictures.recipe import batched, held_out, mean_loss, psnr
from mmspec_continuous.models.kl import pictures_of, tokens_of
from mmspec_continuous.pipeline import ContinuousTextToImagePipeline
from mmspec_continuous.train.recipe import Captioned, ContinuousRecipe, token_loss, train


@torch.no_grad()
def facts_of(
    vae: AutoencoderKL,
    model: Captioned,
    tokenizer: PreTrainedTokenizerFast,
    pictures: Pictures,
    recipe: ContinuousRecipe,
) -> dict[str, Any]:
    """What the card says: parameters, recipe, and numbers of held-out pictures.

    `held_out_loss` is the head's, after the picture's caption and after the null caption, with the same noise;
    `reconstruction_psnr_db` is the autoencoder's, of its tokens as they are and with noise of `sigma_0` on them.
    """
    vae.eval(), model.eval()
    images, ids, mask = held_out(pictures, tokenizer, next(model.parameters()).device)
    tokens = torch.cat([tokens_of(vae, part) for (part,) in batched(images)])
    noise = torch.randn(tokens.shape, generator=torch.Generator().manual_seed(0)).to(tokens.device)

    def loss(dropped: bool) -> float:
        generator = torch.Generator().manual_seed(0)

        def of(ids: Tensor, mask: Tensor, tokens: Tensor) -> Tensor:
            without = torch.full((len(ids),), dropped, device=ids.device)
            return token_loss(model, (ids, mask, tokens, without, tokens, generator))

        return mean_loss(of, ids, mask, tokens)

    def quality(tokens: Tensor) -> float:
        return psnr(torch.cat([pictures_of(vae, part) for (part,) in batched(tokens)]), images)

    return ship.facts(
        recipe,
        vae,
        model,
        held_out_loss={"with its caption": loss(dropped=False), "without a caption": loss(dropped=True)},
        reconstruction_psnr_db={
            "of its tokens": quality(tokens),
            "with noise of sigma_0 on them": quality(tokens + recipe.sigma_0 * noise),
        },
    )


def train_and_ship(
    pictures: Pictures, recipe: ContinuousRecipe, out: Path, work: Path, device: str, say: Callable[[str], None]
) -> None:
    """As `mmspec.kits.pictures.ship.train_and_ship`; writes `<out>/emoji-continuous`."""
    parts = {"train": train, "facts_of": facts_of, "pipeline": ContinuousTextToImagePipeline}
    ship.train_and_ship("emoji-continuous", pictures, recipe, out, work, device, say, **parts)
