"""Simulated players: how long they wait for the next frame, from the moment that their action is known.

A frame is shown, the player thinks for d frame times, and answers. A frame time is what plain decoding takes, measured
in the same race. While the player thinks, frames are made ahead, for free; a pass that is under way when the answer
comes is not, since whoever answers waits for it. Then the wait goes on until the frame of that action is there. Where
nothing is left to be made ahead, the rest of the thinking is skipped, not slept: nobody is measured there.
"""

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from mmspec.bench.limits import synchronize
from mmspec.bench.race import Run, Track
from mmspec.core.decoder import Decoder
from mmspec.core.noise import DraftNoise
from mmspec.core.protocols import Drafter
from mmspec.core.state import State
from mmspec.core.types import Draft
from mmspec_video.bench.clips import Task
from mmspec_video.bench.contestants import Maker
from mmspec_video.playing.frames import FramePlay


@dataclass
class Pace:
    """How long a frame takes, by plain decoding's last play.

    Attributes:
        seconds: Of the median frame.
    """

    seconds: float = 0.0


@dataclass(frozen=True)
class Played(Run):
    """A run that says what a player felt. The first frame is left out: before it nobody could guess.

    Attributes:
        waits: Seconds from every action to its frame.
        hits: Whether that frame was there already.
        discarded: Frames that were made and never shown.
    """

    waits: Sequence[float] = ()
    hits: Sequence[bool] = ()
    discarded: int = 0


@dataclass(frozen=True)
class Player:
    """A player who knows what to do, and takes time to say so.

    Attributes:
        maker: Makes the frames.
        delay: Frame times from a frame to the answer.
        pace: What a frame time is.
        leads: Whether the pace is this one's.
    """

    maker: Maker
    delay: float
    pace: Pace
    leads: bool = False

    def __call__(self, task: Task) -> Played:
        play, device = self.maker.play(task), str(task.first.device)
        assert isinstance(play, FramePlay), "codes are not made ahead of their time"
        frames, waits, hits, late = list[Tensor](), list[float](), list[bool](), 0.0
        synchronize(device)
        for action in task.actions.unbind(1):
            play.act(action[:, None])
            before, began = play.discarded, time.perf_counter()
            frames.append(play.frame())
            synchronize(device)
            waits.append(late + time.perf_counter() - began)
            hits.append(play.discarded < before)
            late = self._thinks(play, device)
        if self.leads:
            self.pace.seconds = statistics.median(waits[1:])
        made = torch.cat(frames).cpu()
        return Played(sum(waits), [made], play.report, waits[1:], hits[1:], play.discarded)

    def _thinks(self, play: FramePlay, device: str) -> float:
        """Seconds by which what was begun meanwhile outlasts the thinking."""
        answers = time.perf_counter() + self.delay * self.pace.seconds
        play.ahead(lambda: time.perf_counter() >= answers)
        synchronize(device)
        return max(0.0, time.perf_counter() - answers)


def felt(track: Track, plain: Track) -> dict[str, float]:
    """Numbers of one contestant's plays beside plain decoding's."""
    runs, base = _played(track), _played(plain)
    waits, usual = ([wait for run in these for wait in run.waits] for these in (runs, base))
    hit = [hit for run in runs for hit in run.hits]
    middle = statistics.median(usual)
    found = {
        "p50_ms": 1e3 * quantile(waits, 0.5),
        "p95_ms": 1e3 * quantile(waits, 0.95),
        "p50_of_plain": quantile(waits, 0.5) / quantile(usual, 0.5),
        "p95_of_plain": quantile(waits, 0.95) / quantile(usual, 0.95),
        "hit_rate": sum(hit) / len(hit),
        "discarded": sum(run.discarded for run in runs) / sum(run.emitted for run in runs),
    }
    for name, wanted in (("hit", True), ("miss", False)):
        some = [wait for wait, there in zip(waits, hit, strict=True) if there == wanted]
        found |= {f"{name}_of_plain": statistics.median(some) / middle} if some else {}
    return {name: round(value, 4) for name, value in found.items()}


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that so many others, as a share, do not exceed."""
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


def _played(track: Track) -> list[Played]:
    return [run for run in track.every if isinstance(run, Played)]


@dataclass
class Overheard:
    """A drafter whose guesses are listened to.

    Attributes:
        drafter: Guesses.
        guesses: The next actions that it last thought of.
    """

    drafter: Drafter
    guesses: Sequence[int] = field(default_factory=tuple)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.drafter, name)

    def propose(self, state: State, k: int, noise: DraftNoise) -> Draft:
        """As the drafter; what hangs on the root is remembered."""
        draft = self.drafter.propose(state, k, noise)
        self.guesses = draft.units[0, draft.index.parent[0, 1:] == 0].tolist()
        return draft


def adversarial(maker: Maker, task: Task) -> Tensor:
    """Actions `[1, new]` of a player who never does what the maker's drafter guesses, where another action is left.

    Guesses depend on earlier actions alone, so that whoever plays these actions later, however fast, is never guessed.
    """
    decoder = maker.decoder()
    heard = Overheard(decoder.drafter)
    listening = Decoder(decoder.target, heard, decoder.rule, k=decoder.k, name=decoder.name)
    play = FramePlay(listening, task.first, task.before, task.actions.shape[1], task.seed)
    actions, known = task.actions[:, :1], decoder.target.vocab
    assert known is not None
    while play.shown < task.actions.shape[1]:
        play.act(actions[:, -1:])
        play.frame()
        play.ahead()
        others = [action for action in range(known) if action not in heard.guesses]
        actions = torch.cat([actions, actions.new_tensor([[others[play.shown % len(others)] if others else 0]])], 1)
    return actions[:, :-1]
