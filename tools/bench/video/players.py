"""Simulated players: how long they wait for the next frame after they have acted.

After each frame the player thinks for d frame times and acts. A frame time is the median of plain decoding's frames,
measured in the same race. While the player thinks, frames are made ahead, off the clock; a pass that is under way when
the player acts counts as waiting. The wait ends when the frame of that action is available. Thinking time in which
nothing is left to be made ahead is skipped instead of slept.
"""

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mmspec.bench.race import Run, Track
from mmspec.bench.timing import synchronize
from mmspec_video.playing.frames import FramePlay
from tools.bench.video.clips import Task
from tools.bench.video.contestants import ClipMaker


@dataclass
class Pace:
    """The frame time: seconds of the median frame in plain decoding's last play."""

    seconds: float = 0.0


@dataclass(frozen=True)
class PlayedRun(Run):
    """A run with a player. The first frame is left out, because nothing can be guessed before it."""

    waits: Sequence[float] = ()  # seconds from every action to its frame
    hits: Sequence[bool] = ()  # whether that frame had been made ahead
    discarded: int = 0  # frames that were made and never shown


@dataclass(frozen=True)
class Player:
    """A contestant: a player with a trace of actions, who thinks before each of them."""

    maker: ClipMaker  # makes the frames
    delay: float  # thinking time, in frame times
    pace: Pace  # the frame time
    leads: bool = False  # whether this player's plays set the pace

    def __call__(self, task: Task) -> PlayedRun:
        play, device = self.maker.play(task), str(task.first.device)
        assert isinstance(play, FramePlay), "codes are not made ahead"
        frames, waits, hits, late = list[Tensor](), list[float](), list[bool](), 0.0
        synchronize(device)
        for action in task.actions.unbind(1):
            play.act(action[:, None])
            before, began = play.discarded, time.perf_counter()
            frames.append(play.frame())
            synchronize(device)
            waits.append(late + time.perf_counter() - began)
            hits.append(play.discarded < before)
            late = self._think(play, device)
        if self.leads:
            self.pace.seconds = statistics.median(waits[1:])
        return PlayedRun(sum(waits), [torch.cat(frames).cpu()], play.report, waits[1:], hits[1:], play.discarded)

    def _think(self, play: FramePlay, device: str) -> float:
        """Make frames ahead during the thinking time; returns the seconds by which the last pass exceeds it."""
        acts = time.perf_counter() + self.delay * self.pace.seconds
        play.ahead(lambda: time.perf_counter() >= acts)
        synchronize(device)
        return max(0.0, time.perf_counter() - acts)


def felt(track: Track, plain: Track) -> dict[str, float]:
    """Waits, hits and discarded frames of one contestant, relative to plain decoding's."""
    runs, base = ([run for run in t.every if isinstance(run, PlayedRun)] for t in (track, plain))
    waits, usual = ([wait for run in these for wait in run.waits] for these in (runs, base))
    hits = [hit for run in runs for hit in run.hits]
    found = {
        "p50_ms": 1e3 * quantile(waits, 0.5),
        "p95_ms": 1e3 * quantile(waits, 0.95),
        "p50_of_plain": quantile(waits, 0.5) / quantile(usual, 0.5),
        "p95_of_plain": quantile(waits, 0.95) / quantile(usual, 0.95),
        "hit_rate": sum(hits) / len(hits),
        "discarded": sum(run.discarded for run in runs) / sum(run.emitted for run in runs),
    }
    for name, wanted in (("hit", True), ("miss", False)):
        some = [wait for wait, hit in zip(waits, hits, strict=True) if hit == wanted]
        found |= {f"{name}_of_plain": statistics.median(some) / statistics.median(usual)} if some else {}
    return {name: round(value, 4) for name, value in found.items()}


def quantile(values: Sequence[float], share: float) -> float:
    """The value at a share of the sorted values, without interpolation."""
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


def adversarial(maker: ClipMaker, task: Task) -> Tensor:
    """Actions `[1, new]` of a player who never does what the maker's drafter guesses, where another action is left.

    Guesses depend on earlier actions alone, so whoever plays these actions later, however fast, is never guessed.
    """
    play = maker.play(task)
    assert isinstance(play, FramePlay), "codes are not made ahead"
    actions, known = task.actions[:, :1], play.decoder.target.vocab
    assert known is not None
    while play.shown < task.actions.shape[1]:
        play.act(actions[:, -1:])
        play.frame()
        play.ahead()
        assert play.pending is not None
        draft = play.pending.draft
        guesses = draft.units[0, draft.index.parent[0] == 0].tolist()
        others = [action for action in range(known) if action not in guesses]
        actions = torch.cat([actions, actions.new_tensor([[others[play.shown % len(others)] if others else 0]])], 1)
    return actions[:, :-1]
