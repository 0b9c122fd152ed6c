"""`nfd`: frames of several actions are denoised together; those whose action was guessed right are kept. Lossy.

The speculative sampling of Next-Frame Diffusion (arXiv 2506.01380, § 3.4): when the action of a frame comes, that frame
and the next k, for actions that are known or guessed, are made in as many passes as one, each pass over k + 1 frames.
Then the player's actions are compared with the guesses: frames up to the first wrong one are shown when their time has
come, the others are thrown away, and the next frames are made together from there.
Why it is a rule: actions are this target's units, and equality decides about them as under `match`; what differs is
what stands behind an accepted unit. So any drafter that guesses a chain will do, and the label cannot get lost: the
decoder that has this rule, and no other, decodes with a target that makes frames together (`FramesTarget.making`).
Guarantee: none. In a pass a frame sees the one before it as noisy as itself (plain play: finished), so that this is
another sampler. The first of the frames that are made together is plain's; with k = 0 all are, bit for bit.
Measured: the report counts frames that were made beside an unfinished one; with `measure`, each of these is made once
more as plain play would make it behind the same earlier frames, and the report has the distance (root mean square, of
latents). What that does over time, the bench compares with the simulator.
Knobs: `k` (more: fewer passes a frame where guesses are right, more thrown away where not, and more deviation);
`measure`. Not a knob: frames in the making look as far back as the model was made for.
"""

from dataclasses import dataclass, field
from typing import Any

from mmspec.core.noise import DraftNoise, Round
from mmspec.core.rules import Match
from mmspec.core.types import Draft, Scores, Verdict
from mmspec_video.plugin import NFD
from mmspec_video.targets.joint import Joint


@dataclass(frozen=True)
class NfdOptions:
    """Options of `nfd`."""

    measure: bool = field(
        default=False, metadata={"help": "make every altered frame plainly, too, and report the distance; slow"}
    )


class Nfd:
    """See the module.

    Args:
        options: What is measured.
    """

    exactness: str = NFD.exactness
    needs, offers = NFD.needs, NFD.offers
    example = "mmspec_video.example:player"

    def __init__(self, options: NfdOptions = NfdOptions()) -> None:
        self.options = options

    def wrap(self, target: Any) -> Any:
        """The target, making frames together; one that makes nothing of its units (a test's player) as it is."""
        return target.making(joint=Joint(self.options.measure)) if hasattr(target, "making") else target

    def draft_noise(self, round: Round) -> DraftNoise:
        return Match().draft_noise(round)

    def accept(self, draft: Draft, scores: Scores, round: Round) -> Verdict:
        return Match().accept(draft, scores, round)
