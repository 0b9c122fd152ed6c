"""What all pipelines over pictures share: encoding prompts, the rounds of a call with its callbacks, pictures."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import torch
from diffusers.image_processor import VaeImageProcessor
from torch import Tensor

from mmspec.api.pipeline import Generators, Pipeline, Seed, seeds_for
from mmspec.core.report import Report
from mmspec.core.state import State
from mmspec.core.warp import Warp
from mmspec.kits.pictures import arguments, encoding
from mmspec.kits.pictures.callbacks import (
    TENSORS,
    Callback,
    StepEnd,
    names_for,
    refuse_guidance,
    refuse_steering,
    refuse_unknown,
)
from mmspec.kits.pictures.capabilities import Gridded
from mmspec.kits.pictures.conditions import Condition, Guiding, repeated, replaced
from mmspec.kits.pictures.grid_spec import GridSpec, Stage
from mmspec.kits.pictures.rounds import Rounds
from mmspec.registry.numbers import integers

OUTPUTS = ("pil", "np", "pt", "latent")


@dataclass(frozen=True)
class CallOptions:
    """Arguments of a call beside its prompts and how units are drawn; the pipelines' `__call__` explains them.

    Raises:
        ValueError: The guidance is below 1, an argument that should be a number is none, or there is no tensor of a
            name that the callback asks for.
    """

    guidance_scale: float
    num_images_per_prompt: int = 1
    height: int | None = None
    width: int | None = None
    seed: Seed = None
    generator: Generators = None
    k: int | None = None
    output_type: str = "pil"
    callback_on_step_end: Callback | None = None
    callback_on_step_end_tensor_inputs: Sequence[str] = ("tokens",)
    steer_every: int | None = None

    def __post_init__(self) -> None:
        refuse_guidance(self.guidance_scale)
        refuse_unknown(self.shown)
        refuse_steering(self.steer_every, self.shown)
        integers(num_images_per_prompt=self.num_images_per_prompt, height=self.height, width=self.width, k=self.k)

    @property
    def guided(self) -> bool:
        """Whether there is an unconditional half."""
        return self.guidance_scale > 1

    @property
    def shown(self) -> Sequence[str]:
        """Names of the tensors that the callback receives."""
        return names_for(self.callback_on_step_end, self.callback_on_step_end_tensor_inputs)


class Asked(NamedTuple):
    """What a call asks the target for."""

    inputs: Any  # the prompt, as the target's `start` takes it
    layout: GridSpec  # the units of a picture
    warp: Warp | None  # how they are drawn; None: from the target's distribution as it is


class Drawn(NamedTuple):
    """What a call drew."""

    images: Any  # pictures in the form that `output_type` names
    report: Report  # counts and times
    units: Tensor  # `[row, height, width, *unit]`; what a stopped call did not reach is filled in (`Rounds.picture`).
    rounds: Tensor  # `[row, height, width]` int64: the round that emitted each unit; 0 is the prefill, -1: not reached


class PicturePipeline(Pipeline):
    """Draws pictures as units in raster order, many units a pass.

    A subclass names its `target_module` and registers its modules. It defines `__call__`, which passes its arguments to
    `draw`, and `decode_units` and `side`. Where its parts are others than `mmspec.kits.pictures.encoding` asks for, it
    defines `encode_prompt`; where guidance is not part of the warp, `guidance_of` and `guide`.
    """

    target_module = "transformer"
    makes = "image"
    _callback_tensor_inputs = list(TENSORS)  # noqa: RUF012  diffusers' own form
    _guidance_scale = 1.0
    _interrupt = False

    @property
    def guidance_scale(self) -> float:
        """The scale of the running call; a callback may set it, and later rounds use it."""
        return self._guidance_scale

    @guidance_scale.setter
    def guidance_scale(self, scale: float) -> None:
        self._guidance_scale = scale

    @property
    def interrupt(self) -> bool:
        """Whether the running call is to stop; a callback sets `pipe._interrupt = True`."""
        return self._interrupt

    @property
    def side(self) -> int:
        """Height and width of a picture, in pixels."""
        raise NotImplementedError

    def decode_units(self, units: Tensor) -> Tensor:
        """Pictures `[row, 3, height, width]` in [-1, 1] of units `[row, cell, *unit]` in raster order."""
        raise NotImplementedError

    def asked(self, condition: Any, warp: Warp | None) -> Asked:
        """What a call with a condition (`encode_prompt`) asks the target for."""
        target = self.decoder().target
        assert isinstance(target, Gridded)
        return Asked(condition, GridSpec((Stage(target.grid, target.grid),)), warp)

    def led_away(self, words: Sequence[str | None], null: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """What guidance leads away from (`Guiding.null`), with other words for some rows.

        Args:
            words: For every row; None: it stays as it is.
            null: What it is now.
            mask: The mask of `null`.

        Raises:
            ValueError: The model does not know a word, or there are not as many as rows.
        """
        arguments.refuse_count(words, len(null))
        for row, said in enumerate(words):
            if said is not None:
                null, mask = replaced(null, mask, row, self.encode_prompt(said, guided=False))
        return null, mask

    def guidance_of(self, state: State) -> float | None:
        """The scale that a call uses now; None: the call has no unconditional half."""
        return state.warp.guidance

    def guide(self, state: State, scale: float) -> None:
        """Use another scale from the next round on."""
        state.warp = replace(state.warp, guidance=scale)

    def encode_prompt(
        self,
        prompt: str | Sequence[str] | None = None,
        *,
        class_labels: int | Sequence[int] | Tensor | None = None,
        negative_prompt: str | Sequence[str] | None = None,
        num_images_per_prompt: int = 1,
        guided: bool = True,
        prompt_embeds: Tensor | None = None,
        prompt_attention_mask: Tensor | None = None,
        negative_prompt_embeds: Tensor | None = None,
        negative_prompt_attention_mask: Tensor | None = None,
    ) -> Condition:
        """The target's condition for a prompt: one row a picture; arguments as in a call.

        Raises:
            ValueError: A prompt is empty, too long or unknown, or does not fit the model.
        """
        if not guided and (negative_prompt is not None or negative_prompt_embeds is not None):
            raise ValueError("negative_prompt= needs guidance_scale > 1: without guidance nothing is led away from")
        count = arguments.count(prompt, class_labels, prompt_embeds)
        if encoding.draws_classes(self.transformer):
            if class_labels is None or negative_prompt is not None:
                raise ValueError("this model draws classes: give class_labels=, and negative_prompt_embeds= as labels")
            condition = encoding.of_classes(self, class_labels, count, negative_prompt_embeds, guided)
        else:
            if class_labels is not None:
                raise ValueError("this model draws captions: give prompt=, not class_labels=")
            positive = (prompt, prompt_embeds, prompt_attention_mask)
            negative = (negative_prompt, negative_prompt_embeds, negative_prompt_attention_mask)
            condition = encoding.of_captions(self, positive, negative, count, guided)
        return repeated(condition, num_images_per_prompt)

    @torch.no_grad()
    def draw(self, warp: Warp | None = None, **call_arguments: Any) -> Drawn:
        """Draw pictures, one row each, in one batch: start, rounds, output.

        Args:
            warp: How units are drawn, guidance included; None: from the target's distribution as it is.
            **call_arguments: Fields of `CallOptions`; all others are arguments of `encode_prompt`.

        Raises:
            ValueError: A prompt is empty, too long or unknown, a number is out of its range, or a name is wrong.
        """
        names = {field.name for field in fields(CallOptions)}
        call = CallOptions(**{name: value for name, value in call_arguments.items() if name in names})
        prompts = {name: value for name, value in call_arguments.items() if name not in names}
        self._guidance_scale, self._interrupt = call.guidance_scale, False
        if call.output_type not in OUTPUTS:
            raise ValueError(f"output_type is one of {', '.join(OUTPUTS)}, not {call.output_type!r}")
        decoder = self.decoder(call.k)
        arguments.refuse_size(self.side, call.height, call.width)
        times = call.num_images_per_prompt
        if times < 1:
            raise ValueError(f"num_images_per_prompt must be at least 1, got {times}")
        given = (prompts.get(name) for name in ("prompt", "class_labels", "prompt_embeds"))
        rows = times * arguments.count(*given)
        seeds = seeds_for(rows, call.seed, call.generator, "picture")
        condition: Guiding = self.encode_prompt(**prompts, num_images_per_prompt=times, guided=call.guided)
        inputs, layout, warp = self.asked(condition, warp)
        every = call.steer_every
        null, null_mask = condition.null, condition.null_mask
        step_end = StepEnd(self, decoder.target, call.callback_on_step_end, call.shown, null, null_mask, every)
        pauses = () if every is None else range(every, layout.length, every)
        with self.progress_bar(total=rows * layout.length) as bar:
            rounds = Rounds(layout)
            for state in decoder.rounds(inputs, layout.length, pauses=pauses, seed=seeds, warp=warp):
                bar.update(rounds.step(state))
                step_end(state, rounds)
                if self.interrupt:
                    break
        size = layout.stages[-1].height, layout.stages[-1].width
        units = rounds.picture(state)
        images = None if call.output_type == "latent" else self._images(units, call.output_type)
        self.maybe_free_model_hooks()
        units = units.unflatten(1, size)
        images = units if images is None else images
        return Drawn(images, state.report, units, rounds.of_cells.unflatten(1, size))

    def _images(self, units: Tensor, output_type: str) -> Any:
        # One at a time: convolutions round by the width of their batch, which would show in a few pixels.
        pictures = torch.cat([self.decode_units(row) for row in units.split(1)])
        return VaeImageProcessor().postprocess(pictures, output_type)
