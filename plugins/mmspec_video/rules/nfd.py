"""`nfd`: the frames of several actions are denoised jointly; those with rightly guessed actions are kept. Lossy.

Speculative sampling of Next-Frame Diffusion (arXiv 2506.01380, § 3.4): when the action of a frame comes, that frame and
the next k, for known or guessed actions, are made in the passes of one frame, each pass over k + 1 frames. Frames up to
the first wrong guess are shown when their time comes, later ones are discarded, and the next ones are made from there.
It is a rule because actions are this target's units, and equality decides about them as under `match`; only the frame
of an accepted action differs. Any drafter of chains works.
Guarantee: none. A frame attends to the one before it while both are noisy (plain decoding: after that is finished):
another sampler. The first of the joint frames is plain decoding's; with k = 0 all are, bit for bit.
Measured: the report counts frames that were made beside an unfinished one; with `measure`, each of them is made once
more by plain decoding from the same earlier frames, and the report has the distance (root mean square, in latents). The
benchmark compares with the simulator over longer times.
Knobs: `k` (more: fewer passes per frame where guesses are right, more discarded frames where not, more deviation);
`measure`.
"""

from dataclasses import dataclass

from mmspec.core.protocols import Target
from mmspec.core.rules import Match
from mmspec.registry.options import option
from mmspec_video.specs import NFD
from mmspec_video.targets.frames import FramesTarget
from mmspec_video.targets.joint import Joint


@dataclass(frozen=True)
class NfdOptions:
    measure: bool = option(False, "make every altered frame by plain decoding, too, and report the distance; slow")


class Nfd(Match):
    """The rule `nfd`: `match` on actions, with a target that denoises jointly."""

    exactness: str = NFD.exactness
    needs, offers = NFD.needs, NFD.offers

    def __init__(self, options: NfdOptions = NfdOptions()) -> None:
        self.options = options

    def wrap(self, target: Target) -> Target:
        """A copy of the target that denoises jointly; a target without frames (a simulated player) as it is."""
        return target.denoising_with(joint=Joint(self.options.measure)) if isinstance(target, FramesTarget) else target
