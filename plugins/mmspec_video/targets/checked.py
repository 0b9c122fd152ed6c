"""A student's frames, where the teacher finds them good enough; the teacher's own elsewhere.

The student (consistency models, arXiv 2303.01469) makes a frame x in one to four jumps. The teacher verifies it in one
pass: noise of its own is mixed in up to a level t, and the teacher says what frame it sees behind that,

    x_t = (1 - t) x + t e,    y = x_t - t v(x_t, t),    gap = RMS(y - x).

The student's frame stands where the gap is below the tolerance; else the teacher makes the frame, all steps of it, from
the noise that plain play gives it. Either way the frame is a function of seed, number, action and earlier frames alone.
A gap is not 0 for a perfect frame either: behind noise nobody sees everything.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from mmspec.core.noise import Substream
from mmspec_video.deviation import distance
from mmspec_video.models.keys import Pair
from mmspec_video.models.next_frame import NextFrameDiT
from mmspec_video.targets.denoiser import Denoiser
from mmspec_video.targets.window import Window


@dataclass(frozen=True)
class Check:
    """Who drafts frames, and which of them stand.

    Attributes:
        student: A model of the teacher's frames and actions, which jumps.
        tolerance: Gaps below it are accepted; 0 accepts nothing.
        level: Of noise, in (0, 1], at which the teacher looks.
    """

    student: NextFrameDiT
    tolerance: float
    level: float
    says: ClassVar[str] = "are the student's"
    off: ClassVar[str] = "the teacher sees a gap of"

    def over(self, teacher: Denoiser) -> "CheckedDenoiser":
        """Both of them, with one cache, and where the teacher is."""
        if self.student.device != teacher.model.device:  # a teacher that is offloaded comes and goes
            self.student.to(teacher.model.device)
        return CheckedDenoiser(teacher, replace(teacher, model=self.student, sampler=self.student.sampler), self)


@dataclass(frozen=True)
class CheckedDenoiser:
    """What a `Denoiser` does, by two models. Keys of a window are the teacher's, and behind them the student's.

    Attributes:
        teacher: As plain play has it.
        student: As the teacher, with another model and sampler.
        check: What stands.
    """

    teacher: Denoiser
    student: Denoiser
    check: Check

    def frame(
        self, window: Window, action: Tensor, key: Tensor, until: Callable[[], bool] | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """As in `Denoiser`.

        Returns:
            Frames `[row, channel, height, width]`; which of them are the student's, `[row]` bool; the gaps of what the
            student made, `[row]`.
        """
        taught, learned = self._apart(window)
        drafted = self.student.frame(learned, action, key, until)
        gap = distance(self._seen_behind_noise(taught, drafted, action, key), drafted)
        stands = gap < self.check.tolerance
        if bool(stands.all()):
            return drafted, stands, gap
        if not bool(stands.any()):  # plain play's own batch, and so its very sums
            return self.teacher.frame(taught, action, key, until), stands, gap
        again = (~stands).nonzero()[:, 0]
        own = self.teacher.frame(_rows(taught, again), action[again], key[again], until)
        return drafted.index_copy(0, again, own), stands, gap

    def keyed(self, window: Window) -> Window:
        """As in `Denoiser`."""
        if self.teacher.cache == "none" or window.keys is not None or not window.slots:
            return window
        both = self.teacher.keyed(window).keys, self.student.keyed(window).keys
        assert both[0] is not None and both[1] is not None
        return replace(window, keys=[*both[0], *both[1]])

    def keys_of(self, window: Window, frame: Tensor, action: Tensor) -> list[Pair]:
        """As in `Denoiser`."""
        taught, learned = self._apart(window)
        return [*self.teacher.keys_of(taught, frame, action), *self.student.keys_of(learned, frame, action)]

    def _seen_behind_noise(self, window: Window, frame: Tensor, action: Tensor, key: Tensor) -> Tensor:
        """Frames that the teacher sees; the noise is the check's own, whatever made the frame."""
        noise, level = self.teacher.noise(key, window.number, 0, Substream.COIN), self.check.level
        mixed = torch.lerp(frame, noise, level)
        return mixed - level * self.teacher.says(window, mixed, action, level)

    def _apart(self, window: Window) -> tuple[Window, Window]:
        """What either of the two knows of a window."""
        if window.keys is None:
            return window, window
        layers = len(self.teacher.model.blocks)
        return replace(window, keys=window.keys[:layers]), replace(window, keys=window.keys[layers:])


def _rows(window: Window, rows: Tensor) -> Window:
    """Some rows of a window."""
    there = window.there[rows]
    keys = None if window.keys is None else [(k[rows], v[rows]) for k, v in window.keys]
    held = int(there.sum(1).max())
    return Window(window.frames[rows], window.actions[rows], there, window.number[rows], held, keys)
