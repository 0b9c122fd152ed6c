"""`NextFramePipeline`: from first frames and a player's actions to new frames, all of them or one by one."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from diffusers import AutoencoderKL
from torch import Tensor

from mmspec.api.build import rebound
from mmspec.api.pipeline import Generators, Pipeline, Seed, seeds_for
from mmspec.core.report import Report
from mmspec.core.warp import Warp
from mmspec.kits.pictures.models.vq import LlamaGenVQ
from mmspec.registry.numbers import integers
from mmspec.registry.warn import warn
from mmspec_video.call import Actions, Frames, FrameStream, NextFrameOutput, Player, actions_in, frames_in
from mmspec_video.clips import refuse_rate
from mmspec_video.codec import codec_of, frame_size
from mmspec_video.models.next_frame import NextFrameDiT
from mmspec_video.models.oasis import OasisDiT
from mmspec_video.models.oasis_actions import KEYS, PRESETS, name_of, numbered, read_actions, vector_of
from mmspec_video.models.oasis_vae import OasisVAE
from mmspec_video.models.token_world import TokenWorldModel
from mmspec_video.playing.frames import FramePlay
from mmspec_video.playing.tokens import TokenPlay
from mmspec_video.targets.denoiser import Cache, Denoiser
from mmspec_video.targets.frames import FramesTarget

OUTPUTS = ("pil", "np", "pt", "latent")


class NextFramePipeline(Pipeline):
    """A world model that can be played.

    Args:
        transformer: Makes frames of codes, or by denoising.
        vae: Autoencoder between pixels and the transformer's codes or latents.
        actions: Names of the action space, by number; default: the numbers.
        fps: Frames per second of the world.
        action_vectors: One vector an action, for open-oasis's models, which read vectors; default: presets, those that
            `actions` names or all (`mmspec_video.models.oasis_actions`).

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
        refuse_rate(fps)
        if action_vectors is None and isinstance(transformer, OasisDiT):
            if transformer.config.external_cond_dim != len(KEYS):
                raise ValueError(f"presets of actions have {len(KEYS)} numbers: give action_vectors=, one an action")
            actions = list(actions) or list(PRESETS)
            action_vectors = [vector_of(name) for name in actions]
        count = transformer.action_count if action_vectors is None else len(action_vectors)
        assert count is not None
        names = list(actions) or [str(i) for i in range(count)]
        self.register_modules(transformer=transformer, vae=vae)
        self.register_to_config(actions=names, fps=fps, action_vectors=action_vectors)
        self.fit()

    def fit(self) -> None:
        codec_of(self.transformer, self.vae)
        if self.config.action_vectors is not None:
            self.transformer.vectors = _with_unknown(torch.tensor(self.config.action_vectors))
        names, count = len(self.config.actions), self.transformer.action_count
        if names != count:
            raise ValueError(f"{names} names for {count} actions")

    def add_actions(self, vectors: Tensor | np.ndarray) -> Tensor:
        """Let vectors `[…, n]` join the action space of a model of open-oasis, each once, and return their numbers.

        Raises:
            ValueError: The model reads no vectors, or not such ones.
        """
        model = self.transformer
        if not isinstance(model, OasisDiT):
            raise ValueError(f"a {type(model).__name__} reads actions by number or name, and not as vectors or files")
        assert model.vectors is not None
        before = len(self.config.actions)
        numbers, table = numbered(torch.as_tensor(vectors), model.vectors[:-1])
        if len(table) > before:
            model.vectors = _with_unknown(table)
            names = [*self.config.actions, *map(name_of, table[before:])]
            self.register_to_config(actions=names, action_vectors=table.tolist())
            if self._decoder is not None:
                self._decoder.target.vocab = len(table)
                self._decoder = rebound(self._decoder, self._decoder.k)
        return numbers

    def __call__(
        self,
        first_frames: Frames,
        actions: Actions | Player,
        *,
        num_frames: int | None = None,
        past_actions: Actions | None = None,
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
            first_frames: At least one, for one row or several; see `mmspec_video.call.frames_in`.
            actions: Numbers or names, a sequence for one row or one a row; each leads to one frame. For open-oasis also
                a file of vectors, or floats `[n, 25]` or `[row, n, 25]`, which join the action space. Or a player:
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
            cache: Denoising models only: `exact`, `streaming` or `none`; see `mmspec_video.targets.denoiser.Denoiser`.
            seed: One seed, or one a row. Frames depend neither on an `invariant` method nor on their batch; denoised
                ones are those of the row alone up to the rounding of float32.
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
        fps = self.config.fps if fps is None else fps
        refuse_rate(fps)
        stream = self.stream(
            first_frames, actions, num_frames=num_frames, past_actions=past_actions, temperature=temperature,
            top_k=top_k, top_p=top_p, num_inference_steps=num_inference_steps, cache=cache, seed=seed,
            generator=generator, k=k, output_type=output_type,
        )  # fmt: skip
        self.unfinished, shown = None, list[Any]()
        try:
            for frames in stream:
                shown.append(frames)
        except KeyboardInterrupt:
            if stream.player is None:
                raise
            warn(f"stopped by CTRL-C after {len(shown)} of {stream.length} frames")
        except Exception as error:
            self.unfinished = stream.output(shown, fps)
            error.add_note(
                f"{len(shown)} of {stream.length} frames were made before; they are in the pipeline's .unfinished"
            )
            raise
        output = stream.output(shown, fps)
        return output if return_dict else tuple(vars(output).values())

    def stream(
        self,
        first_frames: Frames,
        actions: Actions | Player,
        *,
        num_frames: int | None = None,
        past_actions: Actions | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        num_inference_steps: int | None = None,
        cache: Cache | None = None,
        seed: Seed = None,
        generator: Generators = None,
        k: int | None = None,
        output_type: str = "pil",
    ) -> FrameStream:
        """Make frames one by one; wrong arguments are refused at once, not when the first frame is made.

        Returns:
            An iterator over the next frame of every row: a list of PIL pictures, or `[row, …]`. It ends where a player
            quits, and raises what the player raises. It has the report of the frames so far.

        Raises:
            ValueError: As of a call.
        """
        integers(num_frames=num_frames, top_k=top_k, num_inference_steps=num_inference_steps, k=k)
        if output_type not in OUTPUTS:
            raise ValueError(f"output_type is one of {', '.join(OUTPUTS)}, not {output_type!r}")
        coded = isinstance(self.transformer, TokenWorldModel)
        actions, past_actions = self._numbered(actions), self._numbered(past_actions)
        names, decoder = self.config.actions, self.decoder(k)
        frames = frames_in(first_frames, frame_size(self.transformer, self.vae))
        rows, given = frames.shape[:2]
        player = actions if callable(actions) else None
        known = torch.zeros(rows, 0, dtype=torch.int64) if player else actions_in(actions, rows, names)
        length = _length(num_frames, None if player else known.shape[1])
        past = _past(past_actions, rows, given, names)
        seeds = seeds_for(rows, seed, generator, "row")
        sampling: dict[str, Any] = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
        denoising = {"num_inference_steps": num_inference_steps, "cache": cache}
        foreign = [name for name, value in (denoising if coded else sampling).items() if value is not None]
        if foreign:
            raise ValueError(f"{', '.join(foreign)}: this model makes frames {'of codes' if coded else 'by denoising'}")
        device, codec = self._execution_device, codec_of(self.transformer, self.vae)
        warp = Warp.sampling(**{name: value for name, value in sampling.items() if value is not None})
        if not coded:
            assert isinstance(decoder.target, FramesTarget)
            decoder.target.denoiser = _denoiser(self.transformer, num_inference_steps, cache)
        with torch.no_grad():
            encoded = torch.stack([codec.encode(row.to(device)) for row in frames])  # alone, as frames are decoded
        start = (decoder, encoded, past.to(device), length, seeds)
        play = TokenPlay(*start, warp) if coded else FramePlay(*start)
        play.act(known[:, :length].to(device))
        return FrameStream(self, play, codec, encoded[:, -1], (frames[:, -1] + 1) / 2, length, player, output_type)

    def _numbered(self, actions: Any) -> Any:
        """Actions by number or name, where they are vectors or a file."""
        if isinstance(actions, Path) or (isinstance(actions, str) and actions.endswith(".pt")):
            actions = read_actions(Path(actions))
        floats = isinstance(actions, Tensor | np.ndarray) and torch.as_tensor(actions).is_floating_point()
        return self.add_actions(actions) if floats else actions


def _with_unknown(table: Tensor) -> Tensor:
    """A table of actions as a model holds it: the vector of "unknown" stands behind them."""
    return torch.cat([table, torch.zeros_like(table[:1])])


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
