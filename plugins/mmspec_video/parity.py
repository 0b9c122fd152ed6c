"""Run the fixtures of the published video models (`mmspec.testing.parity`)."""

from typing import Any

from torch import Tensor

from mmspec_video.models.oasis import OasisDiT
from mmspec_video.models.oasis_vae import OasisVAE


def oasis_dit(state: dict[str, Tensor], io: dict[str, Tensor], config: dict[str, Any]) -> dict[str, Tensor]:
    """v of all frames in one pass."""
    return {"v": OasisDiT.from_official(state, **config)(io["x"], io["t"], io["actions"])}


def oasis_vae(state: dict[str, Tensor], io: dict[str, Tensor], config: dict[str, Any]) -> dict[str, Tensor]:
    """Latents to picture, picture to latents."""
    model = OasisVAE.from_official(state, **config)
    return {"decoded": model.decode(io["z"]), "posterior_mean": model.posterior_mean(io["image"])}


ARCHITECTURES = {"oasis_dit": oasis_dit, "oasis_vae": oasis_vae}
