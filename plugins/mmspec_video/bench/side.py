"""One model being measured: its clips, its tasks, and what is known of it so far."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from mmspec.bench.memory import Footprint
from mmspec.bench.race import Contestant, Run, Track, relay
from mmspec.report.result import Limits, Peer, Row
from mmspec_video.bench.clips import Recorded, Task, places, reach, task_at
from mmspec_video.bench.contestants import Maker
from mmspec_video.bench.fidelity import fidelity
from mmspec_video.bench.settings import BenchOptions
from mmspec_video.bench.turning import turned_as_told
from mmspec_video.codec import Codec, codec_of
from mmspec_video.models.token_world import TokenWorldModel


@dataclass
class Side:
    """One model.

    Attributes:
        pipe: Its pipeline.
        clips: Recorded ones.
        methods: Names of ours that are tried.
        options: How much.
        device: Where.
        tick: Called after every call.
    """

    pipe: Any
    clips: Recorded
    methods: tuple[str, ...]
    options: BenchOptions
    device: str
    tick: Callable[[], None] = lambda: None
    rows: list[Row] = field(default_factory=list)
    peers: dict[str, Peer] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)

    @property
    def model(self) -> Any:
        """The transformer."""
        return self.pipe.transformer

    @property
    def coded(self) -> bool:
        """Whether its frames are codes."""
        return isinstance(self.model, TokenWorldModel)

    @property
    def codec(self) -> Codec:
        """From and to pixels."""
        return codec_of(self.model, self.pipe.vae)

    @property
    def most(self) -> int:
        """First frames that it can begin with, and one is left to be made."""
        return (self.model.config.frames if self.coded else self.model.window) - 1

    @property
    def legs(self) -> list[list[Task]]:
        """Tasks of every repeat: clips in turns, seeds that count up."""
        options, kept = self.options, len(self.clips.frames)
        numbers = [range(i * options.clips, (i + 1) * options.clips) for i in range(options.repeats)]
        return [[self._task(n % kept, 0, options.frames, options.seed + n) for n in leg] for leg in numbers]

    @property
    def calls(self) -> int:
        """How often one contestant of `relay` is called."""
        return 1 + self.options.repeats * self.options.clips

    def relay(self, contestants: Mapping[str, Contestant], legs: Sequence[Sequence[Task]]) -> dict[str, Track]:
        """Everybody in turns, one clip as a warm-up."""
        return relay(contestants, legs, legs[0][:1], tick=self.tick)

    def looks(self, maker: Maker) -> dict[str, float]:
        """How near its frames are to the simulator's, and whether they move as the actions say; if that is wanted."""
        if not self.options.whole:
            return {}
        found = self._fidelity(lambda task: self._pixels(maker(task).units[0].to(self.device)))
        self.tick()
        return found

    def takes(self, maker: Maker) -> Footprint | None:
        """The memory of its first frames, if that is wanted."""
        if not self.options.whole:
            return None
        found = maker.memory(self.legs[0][0])
        self.tick()
        return found

    def once(self) -> Run:
        """One clip by plain decoding."""
        return Maker(self.model)(self.legs[0][0])

    def references(self) -> dict[str, float]:
        """The same of what costs nothing, and of what the codec makes of the simulator's own frames."""
        repeated = self._fidelity(lambda task: task.last.expand_as(task.truth))
        through = self._fidelity(lambda task: self._pixels(self.codec.encode(task.truth)))
        named = {"the last frame repeated": repeated, "the simulator's frames through the codec": through}
        return {f"{name} of {what}": value for what, numbers in named.items() for name, value in numbers.items()}

    def _fidelity(self, make: Callable[[Task], Tensor]) -> dict[str, float]:
        ahead = reach(self.clips, self.most)
        found = enumerate(places(self.clips, self.most))
        tasks = [self._task(*place, max(ahead), self.options.seed + i) for i, place in found]
        made, truth = torch.stack([make(task) for task in tasks]), torch.stack([task.truth for task in tasks])
        shown = torch.cat([torch.stack([task.last for task in tasks])[:, None], made], 1)
        actions = torch.cat([task.actions for task in tasks])
        turned = turned_as_told((shown + 1) / 2, actions, self.pipe.config.actions)
        return fidelity(made, truth, ahead) | ({} if turned is None else {"turned_as_told": round(turned, 4)})

    def _pixels(self, made: Tensor) -> Tensor:
        return torch.cat([self.codec.decode(part).float().clamp(-1, 1) for part in made.split(32)])

    def _task(self, clip: int, begin: int, new: int, seed: int) -> Task:
        return task_at(self.clips, self.codec, self.most, clip, begin, new, seed, self.device)
