"""`NextFramePipeline`: from first frames and a player's actions to new frames, all of them or one by one."""

from collections.abc import Generator, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from diffusers import AutoencoderKL
from diffusers.image_processor import VaeImageProcessor
from torch import Tensor

from mmspec.api.pipeline import Generators, Pipeline, Seed
from mmspec.core.report import Report
from mmspec.kits.pictures.models.vq import LlamaGenVQ
from mmspec.registry.numbers import integers
from mmspec.registry.warn import warn
from mmspec_video.arguments import Frames, Player, answer_in
from mmspec_video.call import CheckedCall, NextFrameOutput, answer_of, checked
from mmspec_video.codec import codec_of
from mmspec_video.models.next_frame import NextFrameDiT
from mmspec_video.models.oasis import OasisDiT
from mmspec_video.models.oasis_vae import OasisVAE
from mmspec_video.models.token_world import TokenWorldModel
from mmspec_video.targets.denoiser import Cache


class NextFramePipeline(Pipeline):
    """A world model that can be played.

    Args:
        transformer: Makes frames of codes, or by denoising.
        vae: Autoencoder between pixels and the transformer's codes or latents.
        actions: Names of the action space, by number; default: the numbers.
        fps: Frames per second of the world.
        action_vectors: One vector an action, for open-oasis's models, which read vectors.

    Attributes:
        unfinished: The output so far of the last call, where that raised an exception; else None.

    Raises:
        ValueError: The parts do not fit each other; the message names both numbers.

    Example:
        ```python
        pipe = mmspec.Pipeline.from_pretrained("mmspec/four-courts", method="branch-prediction")
        pipe(frame, ["left", "left", "forward"]).save("walk.gif")
        for pictures in pipe.stream(frame, lambda number, frames: read_key(), num_frames=100):
            show(pictures[0])
        ```
    """

    model_cpu_offload_seq = "transformer->vae"
    target_module = "transformer"
    makes = "video"

    def __init__(
        self,
        transformer: NextFrameDiT | OasisDiT | TokenWorldModel,
        vae: LlamaGenVQ | AutoencoderKL | OasisVAE,
        actions: list[str] | tuple[str, ...] = (),  # of types that diffusers can check
        fps: int = 20,
        action_vectors: Sequence[Sequence[float]] | None = None,
    ) -> None:
        super().__init__()
        self.unfinished: NextFrameOutput | None = None
        codec_of(transformer, vae)
        if action_vectors is not None:
            vectors = torch.tensor(action_vectors)
            transformer.vectors = torch.cat([vectors, torch.zeros_like(vectors[:1])])
        elif isinstance(transformer, OasisDiT):
            raise ValueError("open-oasis reads actions as vectors: give action_vectors=, one an action")
        count = transformer.action_count
        assert count is not None
        names = list(actions) or [str(i) for i in range(count)]
        if len(names) != count:
            raise ValueError(f"{len(names)} names for {count} actions")
        self.register_modules(transformer=transformer, vae=vae)
        self.register_to_config(actions=names, fps=fps, action_vectors=action_vectors)

    def __call__(
        self,
        first_frames: Frames,
        actions: Sequence[Any] | Tensor | Player,
        *,
        num_frames: int | None = None,
        past_actions: Sequence[Any] | Tensor | None = None,
        fps: int | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        num_inference_steps: int | None = None,
        cache: Cache | None = None,
        seed: Seed = None,
        generator: Generators = None,
        k: int | None = None,
        output_type: str = "pil",
        return_dict: bool = True,
    ) -> NextFrameOutput | tuple[Any, Report, Tensor, int, int]:
        """Make all frames.

        Args:
            first_frames: At least one, for one row or several; see `mmspec_video.arguments.frames_in`.
            actions: Numbers or names, a sequence for one row or one a row; each leads to one frame. Or a player:
                `player(number, frames) -> action`, called before every frame with the latest ones, `[row, 3, height,
                width]` in [0, 1]. While the player thinks, `branch-prediction` makes frames for guessed actions. The
                player quits by returning None or raising StopIteration; the call then returns the frames so far. CTRL-C
                while a player is there does the same, with a warning.
            num_frames: New frames; default: one per action. A player is asked so many times, or until it quits.
            past_actions: The actions between the first frames, where there are several.
            fps: Frames per second, for `save`; default: the model's.
            temperature: Token models only: sampling temperature; 0 is greedy; default 1.
            top_k: Token models only: sample from the `top_k` likeliest codes; default: all.
            top_p: Token models only: sample from the likeliest codes of this total probability; default 1.
            num_inference_steps: Denoising models only: more is better and slower; default: the model's own.
            cache: Denoising models only: `exact`, `streaming` or `none`; see
                `mmspec_video.targets.denoiser.Denoiser`.
            seed: One seed, or one a row. Frames depend neither on an `invariant` method nor on their batch.
            generator: A `torch.Generator`, or one a row, instead of `seed`.
            k: How far ahead to draft; default: the value given to `use`.
            output_type: `pil`, `np`, `pt`, or `latent`.
            return_dict: Return the output object, or else a tuple of its fields.

        Raises:
            ValueError: An action is outside the action space; frames have another size, dtype or range; there are more
                of them than fit the model's window; a player answers with more than the next action; another argument
                is wrong.
            Exception: What a player raised; `unfinished` has the frames before.
        """
        integers(fps=fps)
        call = checked(
            self, first_frames, actions, num_frames=num_frames, past_actions=past_actions, temperature=temperature,
            top_k=top_k, top_p=top_p, num_inference_steps=num_inference_steps, cache=cache, seed=seed,
            generator=generator, k=k, output_type=output_type,
        )  # fmt: skip
        self.unfinished, shown = None, list[Any]()
        fps = self.config.fps if fps is None else fps
        try:
            for frames in self._frames(call):
                shown.append(frames)
        except KeyboardInterrupt:
            if call.player is None:
                raise
            warn(f"stopped by CTRL-C after {len(shown)} of {call.length} frames")
        except Exception as error:
            self.unfinished = _output(call, shown, fps)
            error.add_note(
                f"{len(shown)} of {call.length} frames were made before; they are in the pipeline's .unfinished"
            )
            raise
        output = _output(call, shown, fps)
        return output if return_dict else tuple(vars(output).values())

    def stream(self, first_frames: Frames, actions: Sequence[Any] | Tensor | Player, **how: Any) -> "FrameStream":
        """Make frames one by one; wrong arguments are refused at once, not when the first frame is made.

        Returns:
            An iterator over the next frame of every row: a list of PIL pictures, or `[row, …]`. It ends where a player
            quits, and raises what the player raises. It has the report of the frames so far.
        """
        call = checked(self, first_frames, actions, **how)
        return FrameStream(self._frames(call), call)

    def _frames(self, call: CheckedCall) -> Generator[Any, None, None]:
        play, pixels, player = call.play, call.pixels, call.player
        try:
            with self.progress_bar(total=call.length) as bar:
                for number in range(call.length):
                    if player is not None:
                        answer = answer_of(partial(player, number, pixels), play)
                        if answer is None:
                            return
                        play.act(answer_in(answer, len(pixels), self.config.actions).to(self._execution_device))
                    frame = play.frame()
                    with torch.no_grad():
                        pixels = ((call.codec.decode(frame).float() + 1) / 2).clamp(0, 1).cpu()
                    bar.update()
                    yield _converted(pixels, frame, call.output_type)
        finally:
            self.maybe_free_model_hooks()


class FrameStream(Iterator[Any]):
    """The frames of a call, one by one."""

    def __init__(self, frames: Generator[Any, None, None], call: CheckedCall) -> None:
        self._frames, self._play = frames, call.play

    def __next__(self) -> Any:
        return next(self._frames)

    def close(self) -> None:
        self._frames.close()

    @property
    def report(self) -> Report:
        """Counts and times so far."""
        return self._play.report

    @property
    def passes(self) -> list[int] | None:
        """Of frames of codes, the number of the pass that brought every code of the first row's latest frame."""
        return self._play.passes

    @property
    def discarded(self) -> int:
        """Frames that were made ahead and not shown, so far; those that are still available count."""
        return self._play.discarded


def _output(call: CheckedCall, shown: list[Any], fps: int) -> NextFrameOutput:
    """The output of a call that has shown these frames."""
    if call.output_type == "pil":
        frames: Any = [[step[row] for step in shown] for row in range(len(call.pixels))]
    elif shown:
        frames = torch.stack([torch.as_tensor(step) for step in shown], 1)
        frames = frames if isinstance(shown[0], Tensor) else frames.numpy()
    else:
        frames = _converted(call.pixels, call.last, call.output_type)[:, None][:, :0]
    play = call.play
    return NextFrameOutput(frames, play.report, play.actions_of(len(shown)).cpu(), play.discarded, fps)


def _converted(pixels: Tensor, frame: Tensor, output_type: str) -> Any:
    """One frame of every row: `pixels [row, 3, height, width]` in [0, 1], and `frame [row, …]` in latents or codes."""
    if output_type == "latent":
        return frame
    return VaeImageProcessor(do_normalize=False).postprocess(pixels, output_type, [False] * len(pixels))
