"""A call of `NextFramePipeline`: its arguments, checked before any frame is made, and its output."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from diffusers.image_processor import VaeImageProcessor
from diffusers.utils import BaseOutput
from torch import Tensor

from mmspec.api.pipeline import Generators, Seed, seeds_for
from mmspec.core.report import Report
from mmspec.core.warp import Warp
from mmspec.registry.numbers import integers
from mmspec_video.arguments import Frames, Player, actions_in, frames_in
from mmspec_video.clips import save_clip
from mmspec_video.codec import Codec, codec_of, frame_size
from mmspec_video.models.token_world import TokenWorldModel
from mmspec_video.playing.frames import FramePlay
from mmspec_video.playing.tokens import TokenPlay
from mmspec_video.targets.denoiser import Cache, Denoiser


@dataclass
class NextFrameOutput(BaseOutput):
    """New frames and how they were made."""

    # PIL pictures `frames[row][i]`, values in [0, 1] as `[row, n, height, width, 3]` (output type `np`) or `[row, n, 3,
    # height, width]` (`pt`), or the transformer's codes or latents `[row, n, …]` (`latent`)
    frames: Any
    report: Report  # counts and times. Units are codes and actions of a token model, and actions of a denoising model.
    actions: Tensor  # `[row, n]` int64: the action that led to each frame
    discarded: int = 0  # frames that were made ahead for guessed actions that the player did not take
    fps: int = field(default=20, repr=False)  # frames per second, for `save`

    def save(self, path: str | Path, row: int = 0, fps: int | None = None) -> Path:
        """Write a row as GIF or MP4; see `mmspec_video.clips.save_clip`.

        Raises:
            ValueError: The frames are latents, or the file cannot be written.
        """
        frames = self.frames[row]
        if not isinstance(frames, list):
            shown = torch.as_tensor(frames)
            if shown.dim() != 4 or 3 not in (shown.shape[1], shown.shape[-1]):
                raise ValueError("latents are no pictures: ask for output_type='pil', 'np' or 'pt'")
            shown = shown if shown.shape[-1] == 3 else shown.permute(0, 2, 3, 1)
            frames = VaeImageProcessor.numpy_to_pil(shown.cpu().numpy())
        return save_clip(frames, path, self.fps if fps is None else fps)


OUTPUTS = ("pil", "np", "pt", "latent")


@dataclass(frozen=True)
class CheckedCall:
    """A call that is ready for its first frame."""

    play: FramePlay | TokenPlay  # makes the frames
    codec: Codec  # between pixels and the transformer's codes or latents
    last: Tensor  # `[row, …]`: the last of the first frames, as the transformer reads it
    pixels: Tensor  # `[row, 3, height, width]` in [0, 1]: the same frame in pixels
    length: int  # new frames wanted
    player: Player | None  # answers with actions; None: all actions are known
    output_type: str  # one of `OUTPUTS`


def checked(
    pipe: Any,
    first_frames: Frames,
    actions: Sequence[Any] | Tensor | Player,
    *,
    num_frames: int | None = None,
    past_actions: Sequence[Any] | Tensor | None = None,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    num_inference_steps: int | None = None,
    cache: Cache | None = None,
    seed: Seed = None,
    generator: Generators = None,
    k: int | None = None,
    output_type: str = "pil",
) -> CheckedCall:
    """Check a call of a pipeline; `NextFramePipeline.__call__` documents the arguments.

    Raises:
        ValueError: An argument is wrong, or does not fit the model.
    """
    integers(num_frames=num_frames, top_k=top_k, num_inference_steps=num_inference_steps, k=k)
    if output_type not in OUTPUTS:
        raise ValueError(f"output_type is one of {', '.join(OUTPUTS)}, not {output_type!r}")
    names, coded = pipe.config.actions, isinstance(pipe.transformer, TokenWorldModel)
    frames = frames_in(first_frames, frame_size(pipe.transformer, pipe.vae))
    rows, given = frames.shape[:2]
    player = actions if callable(actions) else None
    known = torch.zeros(rows, 0, dtype=torch.int64) if player else actions_in(actions, rows, names)
    length = _length(num_frames, None if player else known.shape[1])
    past = _past(past_actions, rows, given, names)
    seeds = seeds_for(rows, seed, generator, "row")
    sampling = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    denoising = {"num_inference_steps": num_inference_steps, "cache": cache}
    foreign = [name for name, value in (denoising if coded else sampling).items() if value is not None]
    if foreign:
        raise ValueError(f"{', '.join(foreign)}: this model makes frames {'of codes' if coded else 'by denoising'}")
    decoder, device, codec = pipe.decoder(k), pipe._execution_device, codec_of(pipe.transformer, pipe.vae)
    warp = Warp.sampling(**{name: value for name, value in sampling.items() if value is not None})
    if not coded:
        decoder.target.denoiser = _denoiser(pipe.transformer, num_inference_steps, cache)
    with torch.no_grad():
        encoded = codec.encode(frames.flatten(0, 1).to(device)).unflatten(0, (rows, given))
    start = (decoder, encoded, past.to(device), length, seeds)
    play = TokenPlay(*start, warp) if coded else FramePlay(*start)
    play.act(known[:, :length].to(device))
    return CheckedCall(play, codec, encoded[:, -1], (frames[:, -1] + 1) / 2, length, player, output_type)


def _length(wanted: int | None, known: int | None) -> int:
    length = known if wanted is None else wanted
    if length is None:
        raise ValueError("a player acts for ever: say num_frames=")
    if length < 1:
        raise ValueError(f"num_frames must be at least 1, got {length}")
    if known is not None and known < length:
        raise ValueError(f"{known} actions lead to {known} frames, not to {length}; give more of them, or a player")
    return length


def _past(past: Any, rows: int, given: int, names: Sequence[str]) -> Tensor:
    """The actions between the first frames, `[row, n - 1]`."""
    actions = actions_in([] if past is None else past, rows, names, "past actions")
    if actions.shape[1] != given - 1:
        between = f"{given} first frames have {given - 1} actions between them"
        raise ValueError(f"{between}; past_actions= has {actions.shape[1]}")
    return actions


def _denoiser(model: Any, steps: int | None, cache: Cache | None) -> Denoiser:
    if steps is not None and steps < 1:
        raise ValueError(f"num_inference_steps must be at least 1, got {steps}")
    sampler = model.sampler if steps is None else replace(model.sampler, steps=steps)
    return Denoiser(model, sampler, "exact" if cache is None else cache)


def answer_of(ask: Callable[[], Any], play: FramePlay | TokenPlay) -> Any:
    """The player's answer, asked for in a thread where frames can be made ahead; None: the player quits.

    Raises:
        Exception: What the player raised.
    """
    try:
        if not play.guesses:
            return ask()
        answer = _in_thread(ask)
        play.ahead(answer.done)
        return answer.result()
    except StopIteration:
        return None


def _in_thread(ask: Callable[[], Any]) -> "Future[Any]":
    """The answer, asked for in a daemon thread: neither CTRL-C nor the interpreter's exit waits for it."""
    answer: Future[Any] = Future()

    def run() -> None:
        try:
            answer.set_result(ask())
        except BaseException as error:  # whoever waits for the answer gets it
            answer.set_exception(error)

    threading.Thread(target=run, name="player", daemon=True).start()
    return answer
