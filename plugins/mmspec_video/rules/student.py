"""`student`: a consistency student drafts every frame, the teacher looks once, and tolerance decides. Lossy.

A student (arXiv 2303.01469; `mmspec train video --distill`) makes a frame in one to four passes where the model, its
teacher, takes many. One more pass verifies: the teacher says what frame it sees behind a noisy copy of the student's
(`mmspec_video.targets.checked`). Below the tolerance the student's frame stands, else the teacher makes it, with all
its steps and the noise that plain play has. Keys of finished frames cost a pass of either model.
Why it is a rule: see `nfd`. Actions are compared as under `match`; tolerance decides what stands behind them. Whoever
guesses actions, and how far ahead, is the drafter's business: frames of right guesses stand ready as under
`branch-prediction`.
Guarantee: none: no distribution couples a frame that was denoised in another way with the teacher's. `tolerance=0` is
plain's frames, bit for bit, and slower.
Measured: the report says how many frames are the student's, and the mean and largest gap that the teacher saw. A gap is
not the distance from plain's frame: no student, and no teacher, has gap 0.
Knobs: `tolerance` (larger: more of the student's frames, further from the teacher's; the unit is a latent frame's
spread), `level` (of noise, at which the teacher looks: low ones see faults of detail, high ones of what is shown).
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from mmspec.core.noise import DraftNoise, Round
from mmspec.core.rules import Match
from mmspec.core.types import Draft, Scores, Verdict
from mmspec_video.models.adapter import StudentAdapter
from mmspec_video.models.next_frame import NextFrameDiT
from mmspec_video.models.students import student_of
from mmspec_video.plugin import STUDENT
from mmspec_video.targets.checked import Check


@dataclass(frozen=True)
class StudentOptions:
    """Options of `student`."""

    tolerance: Annotated[float, Field(ge=0, allow_inf_nan=False)] = field(
        default=0.2, metadata={"help": "gaps below it are accepted; 0 accepts none: plain's frames"}
    )
    level: Annotated[float, Field(gt=0, le=1)] = field(
        default=0.5, metadata={"help": "noise at which the teacher looks: low sees detail, high what is shown"}
    )
    student: Any = field(
        default=None, metadata={"help": "an adapter, a student, or a folder; default: what lies beside the model"}
    )


class Student:
    """See the module.

    Args:
        options: Whose frames, and how good.
    """

    exactness: str = STUDENT.exactness
    needs, offers = STUDENT.needs, STUDENT.offers
    example = "mmspec_video.example:player"

    def __init__(self, options: StudentOptions = StudentOptions()) -> None:
        self.options = options
        self._teacher: Any = None
        self._student: NextFrameDiT | None = None

    def wrap(self, target: Any) -> Any:
        """The target, showing a student's frames; one that makes nothing of its units (a test's player) as it is.

        Raises:
            ValueError: Its model has no student, or another model's.
        """
        if not hasattr(target, "making"):
            return target
        if self._student is None or self._teacher is not target.model:
            given: NextFrameDiT | StudentAdapter | str | Path | None = self.options.student
            self._student, self._teacher = student_of(target.model, given), target.model
        return target.making(check=Check(self._student, self.options.tolerance, self.options.level))

    def draft_noise(self, round: Round) -> DraftNoise:
        return Match().draft_noise(round)

    def accept(self, draft: Draft, scores: Scores, round: Round) -> Verdict:
        return Match().accept(draft, scores, round)
