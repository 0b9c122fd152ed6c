"""Adaptive negatives in diffusers' own pipelines: a callback that reads the picture off the latents.

VLM-guided adaptive negative prompts (arXiv 2510.10715). Before step i a latent is a x0 + s noise, with a and s of the
scheduler; a step without noise of its own moves it along the line through the two, on which two latents, one behind the
other, tell x0. That is the network's prediction of the picture for samplers of first order (DDIM, Euler, flow
matching), and near to it for the others. A callback sees latents behind a step: those before the first one are what the
network reads. Words are encoded by the pipeline itself and take the place of what guidance leads away from. No other
network runs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from inspect import signature
from typing import Any, Self
from weakref import finalize

import torch
from PIL import Image
from torch import Tensor

from mmspec.api.pipeline import Pipeline

SERVED = (
    *("DDIMScheduler", "DDIMParallelScheduler", "PNDMScheduler", "EulerDiscreteScheduler", "HeunDiscreteScheduler"),
    *("LMSDiscreteScheduler", "DPMSolverMultistepScheduler", "DPMSolverSinglestepScheduler", "DEISMultistepScheduler"),
    *("UniPCMultistepScheduler", "FlowMatchEulerDiscreteScheduler", "FlowMatchHeunDiscreteScheduler"),
)
"""Schedulers whose steps draw no noise, as they are called by default."""
POOLED = ("pooled_prompt_embeds", "add_text_embeds")
"""A pipeline's name for the pooled states of its prompts, which stand beside the others."""
Ask = Callable[[Sequence[Image.Image], int, int, str], Sequence[str | None]]  # as `AdaptiveNegative.ask`


def refuse_pipeline(pipe: Any) -> None:
    """Refuse a pipeline whose callback cannot change what guidance leads away from, or whose picture cannot be read."""
    name = type(pipe).__name__
    if isinstance(pipe, Pipeline):
        raise ValueError(f"a {name} is no pipeline that denoises: call it with callback_on_step_end=, steer_every=")
    shown = getattr(pipe, "_callback_tensor_inputs", ())
    apart = "true_cfg_scale" in signature(type(pipe).__call__).parameters  # its unconditional half is not shown
    if apart or "prompt_embeds" not in shown:
        raise ValueError(f"a callback of {name} has no hold on what guidance leads away from")
    masks = [each for each in signature(pipe.encode_prompt).parameters if each.endswith("attention_mask")]
    if masks:
        raise ValueError(f"prompts of {name} have masks ({masks[0]}), which a callback cannot change")
    vae = pipe.vae.config
    if "scaling_factor" not in vae or vae.get("latents_mean") is not None:
        raise ValueError(f"the vae of {name} does not say by one scaling_factor what latents it decodes")
    config, kind = pipe.scheduler.config, type(pipe.scheduler).__name__
    draws = config.get("stochastic_sampling") or str(config.get("algorithm_type")).startswith("sde")
    if kind not in SERVED or draws:
        raise ValueError(
            f"the steps of {kind} draw noise, or are not known, so that the picture so far cannot be read off the "
            f"latents. Without noise these can be used: {', '.join(SERVED)}"
        )


@dataclass
class SteeredDiffusion:
    """`callback_on_step_end` of one call after another: asks every `every` steps, and changes guidance."""

    ask: Ask
    every: int
    start: int | float = 0  # the first step behind which it asks; with a point, a share of all steps
    stop: int | float | None = None  # the first one behind which it no longer does
    # The latents before the last step that moved them to another level of noise, with (a, s)
    _before: tuple[Tensor, float, float] | None = field(default=None, init=False)
    _read: list[Tensor] = field(default_factory=list, init=False)  # what the network read last, if anything

    def watching(self, pipe: Any) -> Self:
        """Itself, which from now on, until it is dropped, keeps what the pipeline's network reads."""
        read = self._read

        def keep(network: Any, given: tuple[Any, ...], named: dict[str, Any]) -> None:
            read[:] = [given[0] if given else named["hidden_states"]]

        network = pipe.components.get("unet") or pipe.components["transformer"]
        finalize(self, network.register_forward_pre_hook(keep, with_kwargs=True).remove)
        return self

    def __call__(self, pipe: Any, step: int, timestep: Any, tensors: dict[str, Any]) -> dict[str, Any]:
        """The condition that guidance leads away from, with the words for every row; refuses a call without guidance,
        and words of another shape than the pipeline's own.
        """
        ahead = pipe.num_timesteps - step - 1
        if not ahead:
            return {}
        latents: Tensor = tensors["latents"]
        if latents.dim() != 4:
            raise ValueError(f"latents {list(latents.shape)} are no pictures [row, channel, height, width]")
        index = len(pipe.scheduler.timesteps) - ahead
        a, s = map(float, marginal(pipe.scheduler, index))
        before, apart = self._before if step else self._first(pipe.scheduler, index - 1, latents), 0.0
        if before is not None:
            apart = before[2] * a - s * before[1]
        if before is None or apart:
            self._before = latents, a, s
        if before is None or not apart or step % self.every or not self._asks(step, pipe.num_timesteps):
            return {}
        clean = (before[2] * latents - s * before[0]) / apart
        return self._led_away(pipe, self.ask(decoded(pipe, clean), step, step + 1, ", "), tensors)

    def _first(self, scheduler: Any, index: int, latents: Tensor) -> tuple[Tensor, float, float] | None:
        """The latents before the first step, as the network read them; None where it was not watched."""
        if not self._read:
            return None
        a, s = map(float, marginal(scheduler, index))
        # Samplers whose states grow with the noise show the network states of unit variance; flows show theirs.
        scale = 1.0 if flows(scheduler) else (a * a + s * s) ** 0.5
        return self._read[0][-len(latents) :, : latents.shape[1]] * scale, a, s

    def _asks(self, step: int, steps: int) -> bool:
        ends = self.start, steps if self.stop is None else self.stop
        first, last = (int(at * steps) if isinstance(at, float) else at for at in ends)
        return first <= step < last

    def _led_away(self, pipe: Any, words: Sequence[str | None], tensors: dict[str, Any]) -> dict[str, Any]:
        if len(tensors["prompt_embeds"]) != 2 * len(words):
            raise ValueError(
                f"this call of {type(pipe).__name__} shows a callback no negative half of its prompts: give a "
                "guidance_scale above 1; pipelines that keep the two halves apart are not served"
            )
        rows = [row for row, each in enumerate(words) if each is not None]
        if not rows:
            return {}
        takes = signature(pipe.encode_prompt).parameters
        given = {"device": pipe._execution_device, "num_images_per_prompt": 1, "do_classifier_free_guidance": False}
        given |= {"prompt": [words[row] for row in rows], "prompt_2": None, "prompt_3": None}
        made = pipe.encode_prompt(**{name: value for name, value in given.items() if name in takes})
        places = {"prompt_embeds": 0} | {name: 2 for name in POOLED if name in tensors}
        return {name: replaced(pipe, tensors[name], rows, made[place]) for name, place in places.items()}


def replaced(pipe: Any, prompts: Tensor, rows: Sequence[int], made: Tensor) -> Tensor:
    """`prompts`, the negative half first, with what was made of words in some rows."""
    if made.shape[1:] != prompts.shape[1:]:
        raise ValueError(
            f"{type(pipe).__name__} reads these words as {list(made.shape[1:])}, and its own negative prompt as "
            f"{list(prompts.shape[1:])}; leave max_sequence_length as it is by default, and words short"
        )
    prompts = prompts.clone()
    prompts[list(rows)] = made.to(prompts)
    return prompts


def decoded(pipe: Any, latents: Tensor) -> list[Image.Image]:
    """Latents `[row, channel, height, width]` as pictures, by the pipeline's own autoencoder."""
    vae, config = pipe.vae, pipe.vae.config
    dtype = vae.dtype
    widened = dtype == torch.float16 and config.get("force_upcast", False)
    if widened:
        vae.to(torch.float32)
    latents = latents.to(vae.dtype) / config.scaling_factor + (config.get("shift_factor") or 0.0)
    pixels = vae.decode(latents, return_dict=False)[0]
    if widened:
        vae.to(dtype)
    pictures: list[Image.Image] = pipe.image_processor.postprocess(pixels.detach(), output_type="pil")
    return pictures


def marginal(scheduler: Any, index: int) -> tuple[Tensor, Tensor]:
    """(a, s) of the state a x0 + s noise before step `index`; behind the last step, (1, 0)."""
    if index == len(scheduler.timesteps):
        return torch.ones(()), torch.zeros(())
    if not hasattr(scheduler, "sigmas"):
        kept = scheduler.alphas_cumprod[int(scheduler.timesteps[index])]
        return kept**0.5, (1 - kept) ** 0.5
    sigma = scheduler.sigmas[index]
    if hasattr(scheduler, "_sigma_to_alpha_sigma_t"):
        of_solver: tuple[Tensor, Tensor] = scheduler._sigma_to_alpha_sigma_t(sigma)
        return of_solver
    return (1 - sigma if flows(scheduler) else torch.ones(())), sigma


def flows(scheduler: Any) -> bool:
    """True if a scheduler's states are (1 - s) x0 + s noise."""
    return type(scheduler).__name__.startswith("FlowMatch") or bool(scheduler.config.get("use_flow_sigmas"))
