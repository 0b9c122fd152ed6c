"""What speculative denoising adds to the manifest; imports no torch."""

from mmspec.registry import AdapterSpec

DENOISING = AdapterSpec(
    name="speculative-denoising",
    factory="mmspec_continuous.denoising.enabled:Denoising",
    fits="mmspec_continuous.denoising.manifest:denoises",
    k=4,
    exactness="lossless",
    summary="For diffusers pipelines: drafts denoising steps, coupled by reflection.",
    paper="https://arxiv.org/abs/2501.05370",
)


def denoises(model: object) -> bool:
    """Whether an object has the parts of a diffusers pipeline that denoises: a network and a scheduler with steps.

    Whether the scheduler's steps have the distribution that is needed, the factory says, with the reason.
    """
    scheduler = getattr(model, "scheduler", None)
    steps = hasattr(scheduler, "step") and hasattr(scheduler, "set_timesteps")
    return steps and any(getattr(model, network, None) is not None for network in ("unet", "transformer"))
