"""`student`: a consistency student drafts every frame, the teacher verifies it in one pass by tolerance. Lossy.

A student (arXiv 2303.01469; `mmspec train student`) makes a frame in one to four passes where the
model, its teacher, takes many. One more pass verifies: the teacher predicts the frame from a noisy copy of the
student's (`mmspec_video.targets.checked`). Below the tolerance the student's frame is kept, else the teacher makes it,
in all its steps and with plain decoding's noise. Keys of finished frames cost a pass of either model.
It is a rule for the reasons given in `nfd`: actions are compared as under `match`, and the tolerance decides about the
frame of an accepted action. Any drafter of actions works; frames of right guesses are available at once, as under
`branch-prediction`.
Guarantee: none: no distribution couples a frame that was denoised in another way with the teacher's. With `tolerance=0`
frames are plain decoding's, bit for bit, and slower.
Measured: the report says how many frames are the student's, and the mean and largest gap that the teacher saw. A gap is
not the distance from plain decoding's frame: it is not 0 for the teacher's own frames either.
Knobs: `tolerance` (larger: more of the student's frames, further from the teacher's; in units of the latents' standard
deviation), `level` (noise at which the teacher verifies: low levels show faults of detail, high levels of content).
"""

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from mmspec.core.protocols import Target
from mmspec.core.rules import Match
from mmspec.registry.options import option
from mmspec_video.models.next_frame import NextFrameDiT
from mmspec_video.models.students import student_of
from mmspec_video.specs import STUDENT
from mmspec_video.targets.checked import Check
from mmspec_video.targets.frames import FramesTarget


@dataclass(frozen=True)
class StudentOptions:
    tolerance: Annotated[float, Field(ge=0, allow_inf_nan=False)] = option(
        0.2, "frames with a gap below it are accepted; 0 accepts none: plain decoding's frames"
    )
    level: Annotated[float, Field(gt=0, le=1)] = option(
        0.5, "noise at which the teacher verifies: low shows faults of detail, high of content"
    )
    student: Any = option(None, "an adapter, a student, or a folder; default: the folder beside the model")


class Student(Match):
    """The rule `student`: `match` on actions, with a target whose frames a student drafts."""

    exactness: str = STUDENT.exactness
    needs, offers = STUDENT.needs, STUDENT.offers

    def __init__(self, options: StudentOptions = StudentOptions()) -> None:
        self.options = options
        self._teacher: Any = None
        self._student: NextFrameDiT | None = None

    def wrap(self, target: Target) -> Target:
        """A copy of the target with a student; a target without frames (a simulated player) as it is."""
        if not isinstance(target, FramesTarget):
            return target
        if self._student is None or self._teacher is not target.model:
            self._student, self._teacher = student_of(target.model, self.options.student), target.model
        return target.denoising_with(check=Check(self._student, self.options.tolerance, self.options.level))
