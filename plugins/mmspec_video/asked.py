"""What a call of `NextFramePipeline` asks for; everything that can be refused is refused before a frame is made."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mmspec.api.pipeline import Generators, Seed, seeds_for
from mmspec.core.warp import Warp
from mmspec.registry.numbers import integers
from mmspec_video.arguments import Frames, Player, actions_in, frames_in
from mmspec_video.codec import Codec, codec_of, frame_size
from mmspec_video.models.token_world import TokenWorldModel
from mmspec_video.playing.frames import FramePlay
from mmspec_video.playing.tokens import TokenPlay
from mmspec_video.targets.denoiser import CACHES, Cache, Denoiser

OUTPUTS = ("pil", "np", "pt", "latent")


@dataclass(frozen=True)
class Call:
    """Arguments as users give them; `NextFramePipeline.__call__` explains each."""

    first_frames: Frames
    actions: Sequence[Any] | Tensor | Player
    num_frames: int | None = None
    past_actions: Sequence[Any] | Tensor | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    num_inference_steps: int | None = None
    cache: Cache | None = None
    seed: Seed = None
    generator: Generators = None
    k: int | None = None
    output_type: str = "pil"


@dataclass(frozen=True)
class Asked:
    """A call, checked.

    Attributes:
        play: What makes its frames.
        codec: From and to pixels.
        units: `[row, …]`: the last of the first frames, as the transformer reads it.
        latest: `[row, 3, height, width]` in [0, 1]: the same in pixels.
        length: New frames.
        player: Who is asked for actions; None: all are known.
        output_type: One of `OUTPUTS`.
    """

    play: FramePlay | TokenPlay
    codec: Codec
    units: Tensor
    latest: Tensor
    length: int
    player: Player | None
    output_type: str


def checked(pipe: Any, call: Call) -> Asked:
    """A call of a pipeline, ready for its first frame.

    Raises:
        ValueError: Something in it is wrong, or does not fit the model.
    """
    integers(num_frames=call.num_frames, top_k=call.top_k, num_inference_steps=call.num_inference_steps, k=call.k)
    if call.output_type not in OUTPUTS:
        raise ValueError(f"output_type is one of {', '.join(OUTPUTS)}, not {call.output_type!r}")
    names, coded = pipe.config.actions, isinstance(pipe.transformer, TokenWorldModel)
    frames = frames_in(call.first_frames, frame_size(pipe.transformer, pipe.vae))
    rows, given = frames.shape[:2]
    player = call.actions if callable(call.actions) else None
    known = torch.zeros(rows, 0, dtype=torch.int64) if player else actions_in(call.actions, rows, names)
    length = _length(call.num_frames, None if player else known.shape[1])
    before = _before(call.past_actions, rows, given, names)
    seeds = seeds_for(rows, call.seed, call.generator, "row")
    _refuse_strangers(call, coded)
    decoder, device, codec = pipe.decoder(call.k), pipe._execution_device, codec_of(pipe.transformer, pipe.vae)
    warp = _warp(call) if coded else None
    if not coded:
        decoder.target.denoiser = _denoiser(decoder.target.denoiser, pipe.transformer, call)
    with torch.no_grad():
        units = codec.encode(frames.flatten(0, 1).to(device)).unflatten(0, (rows, given))
    start = (decoder, units, before.to(device), length, seeds)
    play = TokenPlay(*start, warp) if coded else FramePlay(*start)
    play.act(known[:, :length].to(device))
    return Asked(play, codec, units[:, -1], (frames[:, -1] + 1) / 2, length, player, call.output_type)


def _length(wanted: int | None, known: int | None) -> int:
    """New frames."""
    if wanted is None and known is None:
        raise ValueError("a player acts for ever: say num_frames=")
    length = wanted if wanted is not None else known
    assert length is not None
    if length < 1:
        raise ValueError(f"num_frames must be at least 1, got {length}")
    if known is not None and known < length:
        raise ValueError(f"{known} actions lead to {known} frames, not to {length}; give more of them, or a player")
    return length


def _before(past: Any, rows: int, given: int, names: Sequence[str]) -> Tensor:
    """Actions between the first frames, `[row, n - 1]`."""
    before = actions_in([] if past is None else past, rows, names, "past actions")
    if before.shape[1] != given - 1:
        raise ValueError(
            f"{given} first frames have {given - 1} actions between them; past_actions= has {before.shape[1]}"
        )
    return before


def _refuse_strangers(call: Call, coded: bool) -> None:
    """Refuse what only the other kind of model has."""
    others = ("num_inference_steps", "cache") if coded else ("temperature", "top_k", "top_p")
    strange = [name for name in others if getattr(call, name) is not None]
    if strange:
        raise ValueError(f"{', '.join(strange)}: this model makes frames {'of codes' if coded else 'by denoising'}")


def _warp(call: Call) -> Warp:
    given = {"temperature": call.temperature, "top_k": call.top_k, "top_p": call.top_p}
    return Warp.sampling(**{name: value for name, value in given.items() if value is not None})


def _denoiser(now: Denoiser, model: Any, call: Call) -> Denoiser:
    cache = "exact" if call.cache is None else call.cache
    if cache not in CACHES:
        raise ValueError(f"cache is one of {', '.join(CACHES)}, not {cache!r}")
    steps = call.num_inference_steps
    if steps is not None and steps < 1:
        raise ValueError(f"num_inference_steps must be at least 1, got {steps}")
    sampler = model.sampler if steps is None else replace(model.sampler, steps=steps)
    return replace(now, sampler=sampler, cache=cache, vectors=model.vectors)
