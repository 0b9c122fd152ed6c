"""`NextFramePipeline`: first frames and a player's actions in, frames out, all of them or one by one."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from diffusers.image_processor import VaeImageProcessor
from torch import Tensor

from mmspec.api.pipeline import Generators, Pipeline, Seed
from mmspec.core.report import Report
from mmspec.kits.pictures.models.vq import LlamaGenVQ
from mmspec.registry.numbers import integers
from mmspec.registry.warn import warn
from mmspec_video.arguments import Frames, Player, told_in
from mmspec_video.asked import Asked, Call, checked
from mmspec_video.codec import codec_of
from mmspec_video.models.next_frame import NextFrameDiT
from mmspec_video.models.oasis import OasisDiT
from mmspec_video.models.oasis_vae import OasisVAE
from mmspec_video.models.token_world import TokenWorldModel
from mmspec_video.outputs import NextFrameOutput
from mmspec_video.playing.asking import answer_of
from mmspec_video.playing.frames import FramePlay
from mmspec_video.targets.denoiser import Cache


class NextFramePipeline(Pipeline):
    """A world that can be played.

    Args:
        transformer: Makes frames: of codes, or by denoising.
        vae: Frames to what it reads, and back.
        actions: Names of the action space, by number; default: the numbers.
        fps: Frames a second that it was made for.
        action_vectors: Of open-oasis's models: what they read of every action.

    Attributes:
        unfinished: What the last call had made when it failed, its player's fault or not; None: it did not.

    Raises:
        ValueError: The parts do not fit each other; both numbers are named.

    Example:
        ```python
        pipe = mmspec.Pipeline.from_pretrained("mmspec/my-way-home", method="branch-prediction")
        pipe(frame, ["left", "left", "forward"]).save("walk.gif")
        for pictures in pipe.stream(frame, lambda number, frames: read_key(), num_frames=100):
            show(pictures[0])
        ```
    """

    model_cpu_offload_seq = "transformer->vae"
    target_module = "transformer"

    def __init__(
        self,
        transformer: NextFrameDiT | OasisDiT | TokenWorldModel,
        vae: LlamaGenVQ | OasisVAE,
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
        count = len(action_vectors) if action_vectors is not None else getattr(transformer.config, "actions", None)
        if count is None:
            raise ValueError("open-oasis reads actions as vectors: give action_vectors=, one an action")
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
                width]` in [0, 1]. While it thinks, `branch-prediction` makes frames for its guesses. It quits by
                returning None, or by raising StopIteration: what is returned are the frames so far. So does CTRL-C
                while somebody plays, with a warning.
            num_frames: New frames; default: as many as actions. A player is asked so many times, or until it quits.
            past_actions: What led from one first frame to the next, where there are several.
            fps: Frames a second, for `save`; default: the model's.
            temperature: Of models of codes: higher is more varied, 0 is greedy; default 1.
            top_k: Of models of codes: draw from so many; default: all.
            top_p: Of models of codes: draw from the likeliest of this mass together; default 1.
            num_inference_steps: Of the others: more is better and slower; default: what the model was made for.
            cache: Of the others: `exact`, `streaming` or `none`; see `mmspec_video.targets.denoiser.Denoiser`.
            seed: One, or one a row. Frames do not depend on the method (if it is `invariant`) or on their batch.
            generator: Instead of `seed`: a `torch.Generator`, or one a row.
            k: How far ahead to draft; default: what `use` was told.
            output_type: `pil`, `np`, `pt`, or `latent`.
            return_dict: Return the output object, or else a tuple of its fields.

        Raises:
            ValueError: An action is outside the space; frames have another size, dtype or range; there are more of
                them than the model sees; a player answers with more than the next action; a name or number is wrong.
            Exception: What a player raised, as it is; `unfinished` has the frames before.
        """
        integers(fps=fps)
        call = Call(
            first_frames, actions, num_frames, past_actions, temperature, top_k, top_p, num_inference_steps, cache,
            seed, generator, k, output_type,
        )  # fmt: skip
        self.unfinished, asked, shown = None, checked(self, call), list[Any]()
        fps = self.config.fps if fps is None else fps
        try:
            for frames in self._shown(asked):
                shown.append(frames)
        except KeyboardInterrupt:
            if asked.player is None:
                raise
            warn(f"stopped by CTRL-C after {len(shown)} of {asked.length} frames")
        except Exception as error:
            self.unfinished = _output(asked, shown, fps)
            error.add_note(
                f"{len(shown)} of {asked.length} frames were made before; they are in the pipeline's .unfinished"
            )
            raise
        output = _output(asked, shown, fps)
        return output if return_dict else tuple(vars(output).values())

    def stream(self, first_frames: Frames, actions: Sequence[Any] | Tensor | Player, **how: Any) -> Iterator[Any]:
        """Make frames one by one; wrong arguments are refused at once, before the first frame is asked for.

        Args:
            first_frames: As in a call.
            actions: As in a call.
            **how: As in a call, but for `fps` and `return_dict`.

        Returns:
            An iterator over the next frame of every row: a list of PIL pictures, or `[row, …]`. It ends where a
            player quits; what a player raises, and CTRL-C, come out of it.
        """
        return self._shown(checked(self, Call(first_frames, actions, **how)))

    def _shown(self, asked: Asked) -> Iterator[Any]:
        play, latest, player = asked.play, asked.latest, asked.player
        try:
            with self.progress_bar(total=asked.length) as bar:
                for number in range(asked.length):
                    if player is not None:
                        answer = answer_of(partial(player, number, latest), play)
                        if answer is None:
                            return
                        play.act(told_in(answer, len(latest), self.config.actions).to(self._execution_device))
                    made = play.frame()
                    with torch.no_grad():
                        latest = ((asked.codec.decode(made).float() + 1) / 2).clamp(0, 1).cpu()
                    bar.update()
                    yield _as(latest, made, asked.output_type)
        finally:
            self.maybe_free_model_hooks()


def _output(asked: Asked, shown: list[Any], fps: int) -> NextFrameOutput:
    """What there is of a call."""
    play, nothing = asked.play, _as(asked.latest, asked.units, asked.output_type)
    if asked.output_type == "pil":
        frames = [[step[row] for step in shown] for row in range(len(nothing))]
    else:
        frames = _stacked(shown) if shown else nothing[:, None][:, :0]
    discarded = play.discarded if isinstance(play, FramePlay) else 0
    return NextFrameOutput(frames, play.report, play.acted(len(shown)).cpu(), discarded, fps)


def _as(frames: Tensor, made: Tensor, output_type: str) -> Any:
    if output_type == "latent":
        return made
    return VaeImageProcessor(do_normalize=False).postprocess(frames, output_type, [False] * len(frames))


def _stacked(shown: list[Any]) -> Any:
    tensors = [torch.as_tensor(frames) for frames in shown]
    stacked = torch.stack(tensors, 1)
    return stacked if isinstance(shown[0], Tensor) else stacked.numpy()
