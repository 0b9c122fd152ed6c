"""How the fixtures of the published image models run (`mmspec.testing.parity`)."""

from typing import Any

import torch
from torch import Tensor

from mmspec.core.decoder import Decoder
from mmspec.core.warp import Warp
from mmspec.kits.pictures.conditions import Condition
from mmspec.kits.pictures.models.vq import LlamaGenVQ
from mmspec_image.models.llamagen import LlamaGenTransformer
from mmspec_image.targets.llamagen import LlamaGenTarget

GUIDANCE = 3.0


def llamagen(state: dict[str, Tensor], io: dict[str, Tensor], config: dict[str, Any]) -> dict[str, Tensor]:
    """Teacher-forced logits, and greedy codes under guidance; with masked captions where there are masks."""
    grid = round(config["block_size"] ** 0.5)
    model = LlamaGenTransformer.from_official(state, grid=grid, n_head=config["n_head"])
    outputs = {"logits": model(io["cond"], io["idx"]), "greedy_cfg3": _greedy(model, Condition(io["cond"]))}
    if "emb_masks" in io:
        outputs["greedy_cfg3_masked"] = _greedy(model, Condition(io["cond"], io["emb_masks"].bool()))
    return outputs


def vq(state: dict[str, Tensor], io: dict[str, Tensor], config: dict[str, Any]) -> dict[str, Tensor]:
    """Codes to picture, picture to codes."""
    model = LlamaGenVQ.from_official(state, **config)
    side = io["image"].shape[-1] // model.factor
    decoded = model.decode(io["codes"].unflatten(1, (side, side)))
    return {"decoded": decoded, "image_codes": model.encode(io["image"]).codes.flatten(1)}


def _greedy(model: LlamaGenTransformer, condition: Condition) -> Tensor:
    warp = Warp(sample=False, guidance=GUIDANCE)
    return torch.stack(Decoder(LlamaGenTarget(model)).generate(condition, model.cells, warp=warp).units).int()


ARCHITECTURES = {"llamagen_c2i": llamagen, "llamagen_t2i": llamagen, "llamagen_vq": vq}
