"""The common part of all pipelines over pictures: a call from its arguments over prompts and rounds to pictures."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, NamedTuple

import torch
from diffusers.image_processor import VaeImageProcessor
from torch import Tensor

from mmspec.api.pipeline import Generators, Pipeline, Seed, seeds_for
from mmspec.core.state import State
from mmspec.core.warp import Warp
from mmspec.kits.pictures import arguments, conditions
from mmspec.kits.pictures.arguments import Sampling
from mmspec.kits.pictures.callbacks import (
    TENSORS,
    Callback,
    StepEnd,
    names_for,
    refuse_guidance,
    refuse_steering,
    refuse_unknown,
)
from mmspec.kits.pictures.conditions import Condition, Guiding, repeated, replaced
from mmspec.kits.pictures.grid_spec import Gridded, GridSpec, Stage
from mmspec.kits.pictures.rounds import Rounds
from mmspec.registry.numbers import integers, whole

OUTPUTS = ("pil", "np", "pt", "latent")


class Asked(NamedTuple):
    """The part of a call that the target is asked for."""

    inputs: Any  # the prompt, as the target's `start` takes it
    layout: GridSpec  # the units of a picture
    warp: Warp | None  # how they are drawn; None: from the target's distribution as it is


class PicturePipeline(Pipeline):
    """Draws pictures as units in raster order, many units a pass.

    A subclass names its `target_module` and its `output`, registers its modules, and defines `decode_units`, `side` and
    `sampling`. Where its parts are others than `mmspec.kits.pictures.conditions` asks for, it defines `encode_prompt`;
    where its pictures have several sizes, `set_size`; where guidance is not part of the warp, `warp_of`, `guidance_of`
    and `guide`.

    Attributes:
        output: The class of a call's output: pictures, report, units and rounds.
    """

    output: ClassVar[type[Any]]

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
    def guidance_scale(self, scale: float) -> None:  # no plain attribute: diffusers would change the configuration
        self._guidance_scale = scale

    @property
    def interrupt(self) -> bool:
        """True if the running call is to stop; a callback sets `pipe._interrupt = True`."""
        return self._interrupt

    @property
    def side(self) -> int:
        """Height and width of a picture, in pixels."""
        raise NotImplementedError

    @property
    def sampling(self) -> Sampling:
        """The settings of a call that does not name its own."""
        raise NotImplementedError

    def decode_units(self, units: Tensor) -> Tensor:
        """Pictures `[row, 3, height, width]` in [-1, 1] of units `[row, cell, *unit]` in raster order."""
        raise NotImplementedError

    def pixels_of(self, units: Tensor) -> Tensor:
        """The same, one at a time: convolutions round by the width of their batch, which shows in a few pixels."""
        return torch.cat([self.decode_units(row) for row in units.split(1)])

    def refuse_pixels(self) -> None:
        """Refuse a call for pixels before it runs, where the pipeline has units alone."""

    def set_size(self, height: int | None, width: int | None) -> None:
        """Take the size of a call's pictures, in pixels; None: the model's own.

        Raises:
            ValueError: The model draws no pictures of that size.
        """
        wanted = (self.side if height is None else height, self.side if width is None else width)
        if wanted != (self.side, self.side):
            own, other = f"{self.side} × {self.side} pixels (height × width)", f"{wanted[0]} × {wanted[1]}"
            raise ValueError(f"this model draws {own}, not {other}")

    def warp_of(self, sampling: Sampling) -> Warp | None:
        """The sampling of units; None: from the target's distribution as it is.

        Raises:
            ValueError: A number is out of its range, or the model has no use for it.
        """
        scale, temperature, top_k, top_p = sampling
        return Warp.sampling(temperature, top_k, top_p, guidance=scale if sampling.guided else None)

    def asked(self, condition: Any, warp: Warp | None) -> Asked:
        """The target's inputs for a call with a condition (`encode_prompt`)."""
        target = self.decoder().target
        assert isinstance(target, Gridded)
        return Asked(condition, GridSpec((Stage(target.grid, target.grid),)), warp)

    def led_away(self, words: Sequence[str | None], null: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """The condition that guidance leads away from (`Guiding.null`) and its mask, with other words for some rows;
        None: the row's stays.

        Raises:
            ValueError: The model does not know a word, one is empty, or there are not as many as rows.
        """
        rows = len(null)
        if isinstance(words, str) or len(words) != rows or not all(isinstance(each, str | None) for each in words):
            wanted = f"a list of a text, or None, for each of {rows} rows"
            raise ValueError(f"negative_prompt is {wanted}, and not {words!r}")
        for row, said in enumerate(words):
            if said is not None:
                if not said.strip():
                    raise ValueError(f"the negative prompt of row {row} is empty; None leaves it as it is")
                null, mask = replaced(null, mask, row, self.away(said))
        return null, mask

    def away(self, words: str) -> Guiding:
        """The condition that guidance leads away from for one picture and these words (`given` and `mask`)."""
        guiding: Guiding = self.encode_prompt(words, guided=False).guiding
        return guiding

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
        if conditions.draws_classes(self.transformer):
            if class_labels is None or negative_prompt is not None:
                raise ValueError("this model draws classes: give class_labels=, and negative_prompt_embeds= as labels")
            condition = conditions.of_classes(self, class_labels, count, negative_prompt_embeds, guided)
        else:
            if class_labels is not None:
                raise ValueError("this model draws captions: give prompt=, not class_labels=")
            positive = (prompt, prompt_embeds, prompt_attention_mask)
            negative = (negative_prompt, negative_prompt_embeds, negative_prompt_attention_mask)
            condition = conditions.of_captions(self, positive, negative, count, guided)
        return repeated(condition, num_images_per_prompt)

    @torch.no_grad()
    def __call__(
        self,
        prompt: str | Sequence[str] | None = None,
        *,
        class_labels: int | Sequence[int] | Tensor | None = None,
        negative_prompt: str | Sequence[str] | None = None,
        height: int | None = None,
        width: int | None = None,
        num_images_per_prompt: int = 1,
        guidance_scale: float | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: Seed = None,
        generator: Generators = None,
        k: int | None = None,
        prompt_embeds: Tensor | None = None,
        prompt_attention_mask: Tensor | None = None,
        negative_prompt_embeds: Tensor | None = None,
        negative_prompt_attention_mask: Tensor | None = None,
        output_type: str = "pil",
        return_dict: bool = True,
        callback_on_step_end: Callback | None = None,
        callback_on_step_end_tensor_inputs: Sequence[str] = ("tokens",),
        steer_every: int | None = None,
    ) -> Any:
        """Draw pictures, one row each, in one batch; a unit is a code or a continuous token.

        Args:
            prompt: A caption, or several; for models of captions.
            class_labels: A class, or several; for models of classes.
            negative_prompt: What guidance leads away from: one for all, or one a prompt; "" and None: the null prompt.
            height: In pixels; most models have one size.
            width: In pixels.
            num_images_per_prompt: Pictures of every prompt.
            guidance_scale: Higher follows the prompt more closely; 1 is no guidance, at half the cost. The defaults of
                this and the next three are in `pipe.sampling`, which says how the model's authors draw.
            temperature: Higher is more varied; 0 is greedy. This and the next two are for codes.
            top_k: Draw from the `top_k` likeliest codes; lower is safer, 0 keeps all.
            top_p: Draw from the likeliest codes that have this mass together; lower is safer, 1 keeps all.
            seed: One seed, or one a picture. A picture does not depend on its batch, and under an `invariant` method
                not on the method.
            generator: A `torch.Generator`, or one a picture, instead of `seed`.
            k: Units to draft per round; default: as set by `use`.
            prompt_embeds: Instead of `prompt`: features `[prompt, length, width]`, as `encode_prompt` gives.
            prompt_attention_mask: `[prompt, length]` bool: which of them are no padding.
            negative_prompt_embeds: Instead of `negative_prompt`, maybe of fewer positions; for classes, labels to lead
                away from.
            negative_prompt_attention_mask: The mask of `negative_prompt_embeds`.
            output_type: `pil`; numbers in [0, 1], `[row, height, width, 3]` (`np`) or `[row, 3, height, width]` (`pt`);
                or `latent` for the units.
            return_dict: Return the output object, or else a tuple of its fields.
            callback_on_step_end: `callback(pipe, step, timestep, tensors) -> dict`, after the prefill (step 0) and
                every round; `timestep` counts the units of the slowest row. It may set `pipe.guidance_scale`, return
                another `negative_prompt` (a list of a text, or None, for every row) or `negative_prompt_embeds`, and
                stop the call with `pipe._interrupt = True`.
            callback_on_step_end_tensor_inputs: Tensors that the callback receives: `tokens` (`[row, cell, *unit]`, -1
                or NaN where not drawn yet), `accepted` (drafted units that the round kept, `[row]`), `preview` (the
                picture so far, `[row, 3, height, width]` in [-1, 1], filled in from the row above),
                `negative_prompt_embeds`, `negative_prompt_attention_mask`.
            steer_every: Units between two calls of the callback, such as a row's. All pictures then have as many units,
                and `step` counts the calls: under an `invariant` method a steered picture depends on no
                draft. None: it is called after every round, whose number and length depend on the method.

        Raises:
            ValueError: A prompt is empty, too long or unknown, a number is out of its range, or a name is wrong.
        """
        said = {"guidance_scale": guidance_scale, "temperature": temperature, "top_k": top_k, "top_p": top_p}
        sampling = self.sampling.filled(**said)
        refuse_guidance(sampling.guidance_scale)
        warp = self.warp_of(sampling)
        shown = names_for(callback_on_step_end, callback_on_step_end_tensor_inputs)
        refuse_unknown(shown)
        refuse_steering(steer_every, shown)
        times = whole("num_images_per_prompt", num_images_per_prompt)
        integers(height=height, width=width, k=k)
        if output_type not in OUTPUTS:
            raise ValueError(f"output_type is one of {', '.join(OUTPUTS)}, not {output_type!r}")
        if times < 1:
            raise ValueError("num_images_per_prompt must be at least 1, got 0")
        if output_type != "latent":
            self.refuse_pixels()
        self.set_size(height, width)
        seeds = seeds_for(times * arguments.count(prompt, class_labels, prompt_embeds), seed, generator, "picture")
        self._guidance_scale, self._interrupt = sampling.guidance_scale, False
        decoder = self.decoder(k)
        encode = partial(
            self.encode_prompt,
            prompt,
            class_labels=class_labels,
            negative_prompt=negative_prompt,
            num_images_per_prompt=times,
            guided=sampling.guided,
            prompt_embeds=prompt_embeds,
            prompt_attention_mask=prompt_attention_mask,
            negative_prompt_embeds=negative_prompt_embeds,
            negative_prompt_attention_mask=negative_prompt_attention_mask,
        )
        condition: Any = self.computed(encode)
        inputs, layout, warp = self.asked(condition, warp)
        guiding: Guiding = condition.guiding
        step_end = StepEnd(
            self, decoder.target, callback_on_step_end, shown, guiding.null, guiding.null_mask, steer_every
        )
        pauses = () if steer_every is None else range(steer_every, layout.length, steer_every)
        with self.progress_bar(total=len(guiding.given) * layout.length) as bar:
            rounds = Rounds(layout)
            for state in decoder.rounds(inputs, layout.length, pauses=pauses, seed=seeds, warp=warp):
                bar.update(rounds.step(state))
                step_end(state, rounds)
                if self.interrupt:
                    break
        units = rounds.picture(state)
        images = None
        if output_type != "latent":
            images = VaeImageProcessor().postprocess(self.computed(partial(self.pixels_of, units)), output_type)
        self.maybe_free_model_hooks()
        size = layout.stages[-1].height, layout.stages[-1].width
        units = units.unflatten(1, size)
        drawn = units if images is None else images, state.report, units, rounds.of_cells.unflatten(1, size)
        return self.output(*drawn) if return_dict else drawn
