"""A student's frames where the teacher accepts them, and the teacher's own frames elsewhere.

The student (consistency models, arXiv 2303.01469) makes a frame x in one to four steps. The teacher verifies it in one
pass: x is mixed with fresh noise e up to a level t, and the teacher predicts the clean frame y,

    x_t = (1 - t) x + t e,    y = x_t - t v(x_t, t),    gap = RMS(y - x).

The student's frame is accepted where the gap is below the tolerance; elsewhere the teacher makes the frame in all its
steps, from plain decoding's noise. The gap of a perfect frame is not 0, since no model recovers all of a noisy frame.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mmspec.core.noise import Substream
from mmspec.core.transfer import moved
from mmspec_video.deviation import Deviation, distance
from mmspec_video.models.keys import Pair
from mmspec_video.models.next_frame import NextFrameDiT
from mmspec_video.targets.denoiser import Denoiser
from mmspec_video.targets.window import Window


@dataclass(frozen=True)
class Check:
    """A student, and which of its frames are accepted under the rule `student`."""

    student: NextFrameDiT  # A consistency model with the teacher's frames and actions
    tolerance: float  # frames with a gap below it are accepted; 0 accepts none
    level: float  # noise level, in (0, 1], at which the teacher verifies

    def deviation(self) -> Deviation:
        return Deviation("are the student's", "the teacher sees a gap of")

    def denoiser(self, teacher: Denoiser) -> "CheckedDenoiser":
        return CheckedDenoiser(teacher, replace(teacher, model=self.student, sampler=self.student.sampler), self)


@dataclass(frozen=True)
class CheckedDenoiser:
    """A `Denoiser` with two models. A window's keys are the teacher's layers, followed by the student's."""

    teacher: Denoiser  # plain decoding's denoiser
    student: Denoiser  # the same with the student's model and sampler
    check: Check  # the acceptance test

    def frame(
        self, window: Window, action: Tensor, key: Tensor, until: Callable[[], bool] | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """New frames `[row, channel, height, width]`, as `Denoiser.frame` makes them; `[row]` bool: which of them are
        the student's; `[row]`: the gaps of the student's frames. The last two are on the host, which decides whether
        the teacher makes frames.
        """
        teachers, students = self._split(window)
        drafted = self.student.frame(students, action, key, until)
        gap = distance(self._denoised(teachers, drafted, action, key), drafted).cpu()
        accepted = gap < self.check.tolerance
        if bool(accepted.all()):
            return drafted, accepted, gap
        if not bool(accepted.any()):  # plain decoding's batch, so that sums are equal bit for bit
            return self.teacher.frame(teachers, action, key, until), accepted, gap
        rejected = moved((~accepted).nonzero()[:, 0], drafted.device)
        own = self.teacher.frame(teachers.rows(rejected), action[rejected], key[rejected], until)
        return drafted.index_copy(0, rejected, own), accepted, gap

    def keyed(self, window: Window) -> Window:
        """The window with the keys of both models."""
        if window.keys is not None:
            return window
        teachers, students = self.teacher.keyed(window).keys, self.student.keyed(window).keys
        return window if teachers is None or students is None else replace(window, keys=[*teachers, *students])

    def keys_of(self, window: Window, frame: Tensor, action: Tensor) -> list[Pair]:
        """Keys `[row, 1, …]` of finished frames that follow a window, of both models."""
        teachers, students = self._split(window)
        return [*self.teacher.keys_of(teachers, frame, action), *self.student.keys_of(students, frame, action)]

    def _denoised(self, window: Window, frame: Tensor, action: Tensor, key: Tensor) -> Tensor:
        """The teacher's prediction of frames from their noisy versions; the noise has a lane of its own."""
        noise, level = self.teacher.noise(key, window.number, 0, Substream.COIN), self.check.level
        mixed = torch.lerp(frame, noise, level)
        return mixed - level * self.teacher.predict(window, mixed, action, level)

    def _split(self, window: Window) -> tuple[Window, Window]:
        """The window with the teacher's keys, and with the student's."""
        if window.keys is None:
            return window, window
        layers = len(self.teacher.model.blocks)
        return replace(window, keys=window.keys[:layers]), replace(window, keys=window.keys[layers:])
