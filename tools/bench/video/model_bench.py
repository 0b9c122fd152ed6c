"""One model in a benchmark: its clips, its tasks, and its results so far."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from mmspec.bench.race import Contestant, Run, Track, relay
from mmspec.bench.rows import Footprint, row_of
from mmspec.report.result import PLAIN, Peer, Row
from mmspec_video.codec import Codec, codec_of
from mmspec_video.models.token_world import TokenWorldModel
from mmspec_video.recorded import RecordedClips
from tools.bench.memory import footprint
from tools.bench.video.clips import Task, places, reach
from tools.bench.video.contestants import ClipMaker, same_clips
from tools.bench.video.looks import fidelity, turned_as_told
from tools.bench.video.settings import GIVEN, BenchOptions, Ways
from tools.report.whole import Limits

FEW = 3
"""Frames during which memory is measured, since the profiler is slow."""


@dataclass
class ModelBench:
    """One model."""

    pipe: Any
    clips: RecordedClips
    methods: tuple[str, ...]  # names of the methods to try
    options: BenchOptions  # how much is measured
    device: str  # the device of the transformer
    tick: Callable[[], None] = lambda: None  # called after every call of a contestant
    rows: list[Row] = field(default_factory=list)  # the results
    peers: dict[str, Peer] = field(default_factory=dict)  # results of other loops
    limits: Limits = field(default_factory=Limits)  # costs of passes, and reference values; all models may share them

    @property
    def model(self) -> Any:
        """The transformer."""
        return self.pipe.transformer

    @property
    def coded(self) -> bool:
        """Whether frames are codes."""
        return isinstance(self.model, TokenWorldModel)

    @property
    def codec(self) -> Codec:
        """Between pixels and the transformer's codes or latents."""
        return codec_of(self.model, self.pipe.vae)

    @property
    def most(self) -> int:
        """Most first frames that leave room for a new one."""
        return (self.model.config.frames if self.coded else self.model.window) - 1

    @property
    def legs(self) -> list[list[Task]]:
        """The tasks of every repeat: clips in turns, with consecutive seeds."""
        options, kept = self.options, len(self.clips.frames)
        numbers = [range(i * options.clips, (i + 1) * options.clips) for i in range(options.repeats)]
        return [[self._task(n % kept, 0, options.frames, options.seed + n) for n in leg] for leg in numbers]

    @property
    def calls(self) -> int:
        """How often `relay` calls one contestant."""
        return 1 + self.options.repeats * self.options.clips

    def relay(self, contestants: Mapping[str, Contestant], legs: Sequence[Sequence[Task]]) -> dict[str, Track]:
        """Run all contestants in turns, with one clip as a warm-up."""
        return relay(contestants, legs, legs[0][:1], tick=self.tick)

    def add(
        self,
        setting: str,
        tracks: Mapping[str, Track],
        name: str,
        ways: Ways,
        quality: Mapping[str, float],
        memory: Footprint | None = None,
    ) -> None:
        """Add the row of the contestant `name` of a relay, with its options in `ways`."""
        own, plain = tracks[name], tracks[PLAIN]
        how: dict[str, Any] = {"method": name, "setting": setting, "memory": memory}
        options = {key: value for key, value in ways.get(name, {}).items() if key != "method"}
        quality = {"same_as_plain": same_clips(own, plain), **quality}
        self.rows.append(row_of(own, plain, **how, quality=quality, options=options, every=True))

    def looks(self, maker: ClipMaker) -> dict[str, float]:
        """Fidelity of a maker's frames, and whether they move as the actions say; empty in a quick run."""
        if not self.options.whole:
            return {}
        found = self._fidelity(lambda task: self._pixels(maker(task).units[0].to(self.device)))
        self.tick()
        return found

    def memory(self, maker: ClipMaker) -> Footprint | None:
        """Memory of a maker's first frames; None in a quick run."""
        if not self.options.whole:
            return None
        task = self.legs[0][0]
        few = replace(task, actions=task.actions[:, :FEW])
        found = footprint(lambda: maker(few), [self.model], self.device)
        self.tick()
        return found

    def once(self) -> Run:
        """One clip by plain decoding."""
        return ClipMaker(self.model)(self.legs[0][0])

    def references(self) -> dict[str, float]:
        """`looks` of two references: the last frame repeated, and the simulator's frames through the codec."""
        repeated = self._fidelity(lambda task: task.last.expand_as(task.truth))
        through = self._fidelity(lambda task: self._pixels(self.codec.encode(task.truth)))
        named = {"the last frame repeated": repeated, "the simulator's frames through the codec": through}
        return {f"{name} of {what}": value for what, numbers in named.items() for name, value in numbers.items()}

    def _fidelity(self, make: Callable[[Task], Tensor]) -> dict[str, float]:
        ahead = reach(self.clips, self.most)
        found = enumerate(places(self.clips, self.most))
        tasks = [self._task(*place, max(ahead), self.options.seed + i) for i, place in found]
        frames, truth = torch.stack([make(task) for task in tasks]), torch.stack([task.truth for task in tasks])
        clips = torch.cat([torch.stack([task.last for task in tasks])[:, None], frames], 1)
        actions = torch.cat([task.actions for task in tasks])
        turned = turned_as_told((clips + 1) / 2, actions, self.pipe.config.actions)
        return fidelity(frames, truth, ahead) | ({} if turned is None else {"turned_as_told": round(turned, 4)})

    def _pixels(self, encoded: Tensor) -> Tensor:
        return torch.cat([self.codec.decode(part).float().clamp(-1, 1) for part in encoded.split(32)])

    def _task(self, clip: int, begin: int, new: int, seed: int) -> Task:
        """At most `new` frames of a clip, whose first frames begin at frame `begin`."""
        given = min(GIVEN, self.most)
        frames, actions = (t[clip, begin:].to(self.device) for t in (self.clips.frames, self.clips.actions))
        return Task(
            self.codec.encode(frames[:given])[None],
            actions[None, : given - 1],
            actions[None, given - 1 : given - 1 + new],
            frames[given - 1],
            frames[given : given + new],
            seed,
        )
