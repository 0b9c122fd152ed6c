"""The outputs of published continuous models that `mmspec check --parity` compares (`mmspec.testing.parity`)."""

from typing import Any

import torch
from torch import Tensor

from mmspec_continuous.models.ddpm import respaced
from mmspec_continuous.models.mar import MARTransformer

GUIDANCE = 2.5
STEP = 4


def mar(state: dict[str, Tensor], io: dict[str, Tensor], config: dict[str, Any]) -> dict[str, Tensor]:
    """MAR: both halves of the transformer, the head with and without guidance, and one step of its chain.

    Args:
        state: Weights under the official keys.
        io: Inputs by name.
        config: Arguments of `MARTransformer`, and `num_sampling_steps`.

    Returns:
        Outputs by name.
    """
    chain = respaced(int(config["num_sampling_steps"]))
    model = MARTransformer.from_official(state, **{k: v for k, v in config.items() if k != "num_sampling_steps"})
    unknown = io["mask"].bool()
    encoder = model.encode(io["tokens"], unknown, model.condition(io["labels"]))
    z, net = model.decode(encoder, unknown), model.diffloss.net
    condition, null = z[:, 0], z[:, 1]
    guided, free = net.guided(io["xt"], io["t"], condition, null, GUIDANCE), net(io["xt"], io["t"], null)
    mean, log_variance = model.diffloss.posterior(io["xt"], STEP, chain, condition)
    # The official pass returns the guided noise in both halves, each with its own variance.
    both = torch.cat([guided, torch.cat([guided[:, : net.dim], free[:, net.dim :]], 1)])
    return {
        "encoder": encoder, "z": z, "net": net(io["xt"], io["t"], condition), "net_cfg2p5": both,
        "step4_mean": mean, "step4_log_variance": log_variance,
    }  # fmt: skip


ARCHITECTURES = {"mar": mar}
