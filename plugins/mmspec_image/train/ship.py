"""What was trained, as a folder that `TextToImagePipeline.from_pretrained` reads, with its facts beside the weights."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from mmspec.kits.pictures import ship
from mmspec.kits.pictures.data import Pictures
from mmspec.kits.pictures.models.vq import LlamaGenVQ
from mmspec.kits.pictures.recipe import batched, held_out, mean_loss, psnr
from mmspec_image.pipeline import TextToImagePipeline
from mmspec_image.train.recipe import Captioned, ImageRecipe, next_code, train


@torch.no_grad()
def facts_of(
    vq: LlamaGenVQ, model: Captioned, tokenizer: PreTrainedTokenizerFast, pictures: Pictures, recipe: ImageRecipe
) -> dict[str, Any]:
    """What the card says: parameters, recipe, and numbers of held-out pictures.

    `held_out_nats_per_code` is the cross-entropy after the picture's caption, and after the null caption;
    `reconstruction_psnr_db` is the tokenizer's.
    """
    vq.eval(), model.eval()
    images, ids, mask = held_out(pictures, tokenizer, next(model.parameters()).device)
    codes = torch.cat([vq.encode(part).codes.flatten(1) for (part,) in batched(images)])
    square = 2 * (model.transformer.config.grid,)
    decoded = torch.cat([vq.decode(part.unflatten(1, square)) for (part,) in batched(codes)])

    def nats(ids: Tensor, mask: Tensor, codes: Tensor, dropped: bool) -> Tensor:
        without = torch.full((len(ids),), dropped, device=ids.device)
        return next_code(model, (ids, mask, codes, without, codes))

    return ship.facts(
        recipe,
        vq,
        model,
        held_out_nats_per_code={
            "with its caption": mean_loss(partial(nats, dropped=False), ids, mask, codes),
            "without a caption": mean_loss(partial(nats, dropped=True), ids, mask, codes),
        },
        reconstruction_psnr_db=psnr(decoded, images),
        codes_used=len(codes.unique()),
    )


def train_and_ship(
    pictures: Pictures, recipe: ImageRecipe, out: Path, work: Path, device: str, say: Callable[[str], None]
) -> None:
    """As `mmspec.kits.pictures.ship.train_and_ship`; writes `<out>/emoji`."""
    parts = {"train": train, "facts_of": facts_of, "pipeline": TextToImagePipeline}
    ship.train_and_ship("emoji", pictures, recipe, out, work, device, say, **parts)
