"""`nfd`: the frames of several actions are denoised jointly; those with rightly guessed actions are kept. Lossy.

Speculative sampling of Next-Frame Diffusion (arXiv 2506.01380, § 3.4): when the action of a frame comes, that frame and
the next k, for known or guessed actions, are made in the passes of one frame, each pass over k + 1 frames. Frames up to
the first wrong guess are shown when their time comes, later ones are discarded, and the next ones are made from there.
It is a rule because actions are this target's units, and equality decides about them as under `match`; only the frame
of an accepted action differs. Any drafter of chains works.
With `student` a consistency student denoises, in one to four steps (the paper's NFD+; `mmspec train student`).
Guarantee: none. A frame attends to the one before it while both are noisy (plain decoding: after that is finished):
another sampler. The first of the joint frames is plain decoding's; with k = 0 all are, bit for bit. Under a student,
plain decoding is the student's alone.
Measured: the report counts frames that were made beside an unfinished one; with `measure`, each of them is made once
more by plain decoding from the same earlier frames, and the report has the distance (root mean square, in latents). The
benchmark compares with the simulator over longer times.
Knobs: `k` (more: fewer passes per frame where guesses are right, more discarded frames where not, more deviation);
`student`; `measure`.
"""

from dataclasses import dataclass
from typing import Any

from mmspec.core.protocols import Target
from mmspec.core.rules import Match
from mmspec.registry.options import option
from mmspec_video.models.next_frame import NextFrameDiT
from mmspec_video.models.students import student_of
from mmspec_video.specs import NFD
from mmspec_video.targets.frames import FramesTarget
from mmspec_video.targets.joint import Joint


@dataclass(frozen=True)
class NfdOptions:
    student: Any = option(
        False, "a consistency student that denoises: True for the one beside the model, an adapter, a student, a folder"
    )
    measure: bool = option(False, "make every altered frame by plain decoding, too, and report the distance; slow")


class Nfd(Match):
    """The rule `nfd`: `match` on actions, with a target that denoises jointly."""

    exactness: str = NFD.exactness
    needs, offers = NFD.needs, NFD.offers

    def __init__(self, options: NfdOptions = NfdOptions()) -> None:
        self.options = options
        self._teacher: Any = None
        self._student: NextFrameDiT | None = None

    def wrap(self, target: Target) -> Target:
        """A copy of the target that denoises jointly; a target without frames (a simulated player) as it is."""
        if not isinstance(target, FramesTarget):
            return target
        given = self.options.student
        if given is not False and self._teacher is not target.model:
            self._student = student_of(target.model, None if given is True else given)
            self._teacher = target.model
        return target.denoising_with(joint=Joint(self.options.measure), student=self._student)
