"""What speculative denoising adds to the manifest; imports no torch."""

from collections.abc import Iterator

from mmspec.registry import Component

PAPER = "https://arxiv.org/abs/2501.05370"


def components() -> Iterator[Component]:
    """A target for live diffusers pipelines, and its method."""
    yield Component(
        name="diffusion-pipeline",
        kind="target",
        factory="mmspec_continuous.denoising.enabled:Denoising",
        offers=frozenset({"denoising", "own-loop"}),
        default_method="speculative-denoising",
        default_k=4,
        summary="A diffusers pipeline with a unet or transformer and a scheduler that adds noise.",
        paper=PAPER,
    )
    yield Component(
        name="speculative-denoising",
        kind="method",
        needs=frozenset({"denoising", "own-loop"}),
        rule="rejection",
        exactness="lossless",
        summary="Draft denoising steps with the last prediction frozen; couple by reflection.",
        paper=PAPER,
    )


def target_for(model: object) -> str | None:
    """By what a live pipeline is made of; whether its scheduler will do is the target's business, which says why."""
    scheduler = getattr(model, "scheduler", None)
    steps = hasattr(scheduler, "step") and hasattr(scheduler, "set_timesteps")
    denoises = getattr(model, "unet", None) is not None or getattr(model, "transformer", None) is not None
    return "diffusion-pipeline" if steps and denoises else None
