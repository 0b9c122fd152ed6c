"""Consistency distillation of a model of frames: a student that makes a frame in one to four steps (NFD+).

Next-Frame Diffusion (arXiv 2506.01380, § 3.3) distills its model before it draws frames ahead (`nfd`). Its authors take
consistency models in continuous time (sCM, 2410.11081); here times are levels on a path, one Euler step of the teacher
apart (2303.01469, Algorithm 2), since the shipped worlds learn that in minutes. Every frame is denoised given clean
earlier frames, as when it is used.

What is learnt are low-rank differences of the teacher's matrices (LoRA, 2106.09685), which the rule `student` adds, and
`mmspec_video.models.students.student_of`.
"""

import copy
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mmspec.files import save_sealed
from mmspec.hosts.fingerprint import identity
from mmspec.training.loop import LoopOptions, fit
from mmspec.training.work import claimed, digest
from mmspec_video.codec import codec_of, frame_size
from mmspec_video.models.keys import LayerKeys, current
from mmspec_video.models.next_frame import NextFrameDiT
from mmspec_video.models.students import StudentAdapter, key_of, matrices_of, refuse_teacher
from mmspec_video.pipeline import NextFramePipeline
from mmspec_video.recorded import RecordedClips

LEVELS = 16
"""Number of times on a path; the student learns to agree with itself at neighbouring ones."""
UNKNOWN_FIRST = 0.5
"""Probability that a clip's first action is replaced by "unknown", as at the start of a call."""
PART = 32
"""Frames that are encoded at once."""

Batch = tuple[Tensor, Tensor, Tensor, Tensor]
"""Latents `[row, frame, …]`, actions that led to the frames `[row, frame]`, noise, times `[row, frame]`."""


HELD_OUT = 10
"""One clip in so many is held out, at least one."""


@dataclass(frozen=True)
class StudentRecipe:
    """Lengths and sizes."""

    steps: int = 200  # optimiser steps
    batch: int = 8  # clips in a batch
    rank: int = 4  # of the differences
    jumps: int = 2  # the student's steps from noise to a frame
    learning_rate: float = 1e-3  # the peak
    seed: int = 0  # of weights and batches

    def batch_seed(self, step: int) -> int:
        """The seed of a step's batch."""
        return self.seed * 1_000_003 + step


class LowRankLinear(nn.Module):
    """A frozen linear layer and its learned low-rank difference, which is zero at first."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, base.in_features) / base.in_features**0.5)
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + (x @ self.down.T) @ self.up.T


def adaptable(teacher: NextFrameDiT, rank: int) -> NextFrameDiT:
    """A copy of the teacher in which only low-rank differences of the matrices are trained."""
    model = copy.deepcopy(teacher).requires_grad_(False)
    for name, layer in matrices_of(model).items():
        parent, _, own = name.rpartition(".")
        setattr(model.get_submodule(parent), own, LowRankLinear(layer, rank))
    return model


def adapter_of(adapted: nn.Module, steps: int) -> StudentAdapter:
    """The adapter that holds what a model of `adaptable` has learned."""
    layers = {name: layer for name, layer in adapted.named_modules() if isinstance(layer, LowRankLinear)}
    rank = next(iter(layers.values())).down.shape[0]
    adapter = StudentAdapter({name: list(layer.base.weight.shape) for name, layer in layers.items()}, rank, steps)
    for name, layer in layers.items():
        adapter.down[key_of(name)].data.copy_(layer.down.detach())
        adapter.up[key_of(name)].data.copy_(layer.up.detach())
    return adapter.eval()


def train_and_write(
    pipe: Any,
    clips: RecordedClips,
    recipe: StudentRecipe,
    folder: Path,
    work: Path,
    name: str,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Train a student for the world of a pipeline, or go on with it, and write its folder; returns its facts.

    `name` is the world's. Refuses worlds whose frames are not denoised by a model of flow matching,
    and clips of other sizes or actions, or too few.
    """
    if not isinstance(pipe, NextFramePipeline):
        raise ValueError(f"{name} makes no frames after actions: it is a {type(pipe).__name__}")
    teacher = pipe.transformer
    refuse_teacher(teacher)
    teacher.float()
    kept = _coded(pipe, clips)
    held = max(1, len(kept.latents) // HELD_OUT)
    learnt, out = (Clips(kept.latents[part], kept.actions[part]) for part in (slice(-held), slice(-held, None)))
    own = {"target": name, "weights": identity(teacher), "data": digest([clips.frames, clips.actions])}
    frames, unknown = teacher.config.frames, teacher.config.actions
    with claimed(work, asdict(recipe) | own):

        def batch_at(step: int) -> Batch:
            return learnt.batch(recipe.batch, frames, unknown, recipe.batch_seed(step), teacher.device)

        adapter = distilled(teacher, batch_at, recipe, work / "student", say)
        batch = out.batch(recipe.batch, frames, unknown, recipe.seed, teacher.device)
        with torch.no_grad():
            before, gap = (float(consistency_loss(one, teacher, batch)) for one in (teacher, adapter.student(teacher)))
        facts = {
            "target": name,
            "parameters": sum(p.numel() for p in adapter.parameters()),
            "held_out": {"gap": round(gap, 4), "gap of the teacher": round(before, 4)},
            "recipe": asdict(recipe),
        }

        def write(side: Path) -> None:
            adapter.half().save_pretrained(side)
            (side / "training.json").write_text(json.dumps(facts, indent=2) + "\n")

        save_sealed(folder, write)
    return facts


@torch.no_grad()
def _coded(pipe: NextFramePipeline, clips: RecordedClips) -> "Clips":
    """Clips as the model of a pipeline reads them."""
    teacher, codec = pipe.transformer, codec_of(pipe.transformer, pipe.vae)
    size, frames, given = frame_size(teacher, pipe.vae), teacher.config.frames, tuple(clips.frames.shape[-2:])
    if given != tuple(size):
        raise ValueError(
            f"the clips have frames of {given[0]} × {given[1]} pixels, and this world of {size[0]} × {size[1]}"
        )
    if len(clips.frames) < 2 or clips.actions.shape[1] < frames:
        raise ValueError(
            f"there are {len(clips.frames)} clips of {clips.frames.shape[1]} frames, and there have to be two, one of "
            f"which is held out, of more than {frames} frames, the model's window"
        )
    if int(clips.actions.max()) >= teacher.config.actions:
        raise ValueError(
            f"the clips have the action {int(clips.actions.max())}, and this world {teacher.config.actions}"
        )
    parts = [codec.encode(part.to(teacher.device)).float().cpu() for part in clips.frames.flatten(0, 1).split(PART)]
    return Clips(torch.cat(parts).unflatten(0, clips.frames.shape[:2]), clips.actions)


def distilled(
    teacher: NextFrameDiT,
    batch_at: Callable[[int], Batch],
    recipe: StudentRecipe,
    work: Path,
    say: Callable[[str], None],
) -> StudentAdapter:
    """Train a student's differences, or the rest of them, on the batches of steps (`on_paths`)."""
    torch.manual_seed(recipe.seed)
    teacher = teacher.eval().requires_grad_(False)
    model = adaptable(teacher, recipe.rank).to(teacher.device)
    options = LoopOptions(recipe.steps, recipe.learning_rate, warmup=min(50, recipe.steps // 4), weight_decay=0.0)
    fit(model, batch_at, lambda student, batch: consistency_loss(student, teacher, batch), options, work, say)
    return adapter_of(model, recipe.jumps)


@dataclass(frozen=True)
class Clips:
    """Clips of a world, as its model reads them."""

    latents: Tensor  # `[clip, frame, channel, row, column]` float32
    actions: Tensor  # `[clip, frame - 1]` int64: action `i` leads from frame `i` to frame `i + 1`

    def batch(self, rows: int, frames: int, unknown: int, seed: int, device: Any) -> Batch:
        """Random windows of so many frames on paths; `unknown` is the number of the unknown action."""
        g = torch.Generator().manual_seed(seed)
        clip = torch.randint(len(self.latents), (rows, 1), generator=g)
        at = torch.randint(self.actions.shape[1] - frames + 1, (rows, 1), generator=g) + torch.arange(frames)
        return on_paths(self.latents[clip, at + 1].to(device), self.actions[clip, at].to(device), unknown, seed)


@torch.no_grad()
def on_paths(latents: Tensor, actions: Tensor, unknown: int, seed: int) -> Batch:
    """Clean frames and the actions that led to them, with noise, and times `1 / LEVELS … 1`."""
    g, device = torch.Generator().manual_seed(seed), latents.device
    actions = first_unknown(actions, unknown, g)
    noise = torch.randn(latents.shape, generator=g).to(device)
    time = torch.randint(1, LEVELS + 1, latents.shape[:2], generator=g) / LEVELS
    return latents, actions, noise, time.to(device)


def first_unknown(actions: Tensor, unknown: int, g: torch.Generator) -> Tensor:
    """Actions `[row, frame]`, the first of some rows unknown."""
    hidden = (torch.rand(len(actions), generator=g) < UNKNOWN_FIRST).to(actions.device)
    return torch.cat([torch.where(hidden, unknown, actions[:, 0])[:, None], actions[:, 1:]], 1)


def consistency_loss(student: Any, teacher: Any, batch: Batch) -> Tensor:
    """Pseudo-Huber distance (arXiv 2310.14189, eq. 7) of the student's frames at two times of one path.

    The path is the teacher's: one Euler step leads from the later to the earlier time.
    """
    latents, actions, noise, time = batch
    wide = time[..., None, None, None]
    mixed, earlier = torch.lerp(latents, noise, wide), (time - 1 / LEVELS).clamp(min=0)
    with torch.no_grad():
        velocity = velocities_after_clean(teacher, latents, mixed, time, actions)
        before = mixed - (wide - earlier[..., None, None, None]) * velocity
        wanted = predicted(student, latents, before, earlier, actions)  # at time 0: the path's end
    gap = (predicted(student, latents, mixed, time, actions) - wanted).flatten(2)
    soft = 0.00054 * gap.shape[2] ** 0.5
    return ((gap.square().sum(-1) + soft**2).sqrt() - soft).mean()


def predicted(model: Any, latents: Tensor, mixed: Tensor, time: Tensor, actions: Tensor) -> Tensor:
    """The clean frames that a consistency model predicts: `x - t · v`."""
    return mixed - time[..., None, None, None] * velocities_after_clean(model, latents, mixed, time, actions)


def velocities_after_clean(model: Any, latents: Tensor, mixed: Tensor, time: Tensor, actions: Tensor) -> Tensor:
    """Velocities of noisy frames, each given the clean frames before it: two passes for all frames."""
    rows, frames = time.shape
    clean = [LayerKeys() for _ in model.blocks]
    with torch.no_grad():
        model(latents, torch.full_like(time, model.config.context_time), actions, keys=clean)
    position = torch.arange(frames, device=time.device).expand(rows, -1)
    earlier = torch.ones(frames, frames, dtype=torch.bool, device=time.device).tril(-1)
    itself = torch.eye(frames, dtype=torch.bool, device=time.device)
    seen = torch.cat([earlier, itself], 1).expand(rows, -1, -1)
    velocities: Tensor = model(mixed, time, actions, position, seen, [LayerKeys(pair) for pair in current(clean)])
    return velocities.float()
