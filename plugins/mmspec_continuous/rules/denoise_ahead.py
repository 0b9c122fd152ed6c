"""`denoise-ahead`: `rejection`, whose free draws take several denoising steps per call of the head.

Speculative denoising (De Bortoli et al., arXiv 2501.05370) inside of the head, by `mmspec.core.distributions.ahead`:
the head's last prediction, frozen, drafts the next steps, one call judges them all, reflection couples each. With no
drafter it is plain decoding with fewer calls of the head, one after another; windows are coupled as ever, a call a
step. Guarantee: `lossless`.
Knob: `ahead` (more: fewer calls, and more evaluations that are thrown away). Of 16 steps, 8 numbers a token, mixtures
of 8 Gaussians: 2 / 3 / 4 / 8 steps ahead take 2.0 / 2.2 / 2.3 / 2.4 × fewer calls with 1.2 / 1.4 / 1.5 / 2.0 × the
evaluations. That pays where a call takes as long for many states as for one: large heads and many steps on a device;
not in a head whose call is as short as the bookkeeping of one, as that of our model on a CPU.
"""

from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from pydantic import Field

from mmspec.core.distributions import DenoisingChain
from mmspec.core.noise import DraftNoise, Round
from mmspec.core.rules import Rejection
from mmspec.core.types import Draft, Scores, Verdict
from mmspec_continuous.plugin import DENOISE_AHEAD
from mmspec_continuous.rules.heads import refuse_mixtures


@dataclass(frozen=True)
class AheadOptions:
    """Options of `denoise-ahead`."""

    ahead: Annotated[int, Field(ge=1, le=64)] = field(
        default=4, metadata={"help": "denoising steps to draft per call of the head; exact whatever it is"}
    )


class DenoiseAhead:
    """See the module.

    Args:
        options: How far ahead.
    """

    exactness: str = DENOISE_AHEAD.exactness
    needs, offers = DENOISE_AHEAD.needs, DENOISE_AHEAD.offers

    def __init__(self, options: AheadOptions = AheadOptions()) -> None:
        self.options = options

    def bind(self, target: Any) -> None:
        """Refuse heads without steps.

        Raises:
            ValueError: The target's head is a mixture.
        """
        refuse_mixtures(target, "denoise-ahead", "drafts the steps")

    def draft_noise(self, round: Round) -> DraftNoise:
        return DraftNoise(round, shared=False)

    def accept(self, draft: Draft, scores: Scores, round: Round) -> Verdict:
        if isinstance(scores.distribution, DenoisingChain):
            scores = replace(scores, distribution=replace(scores.distribution, ahead=self.options.ahead))
        return Rejection().accept(draft, scores, round)
