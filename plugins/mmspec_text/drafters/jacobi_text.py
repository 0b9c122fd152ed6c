"""`jacobi-text`: the target's own last pass over a window of tokens is the draft; no model, no training.

Jacobi decoding of texts (Santilli et al., arXiv 2305.10427, algorithm 1: all positions of a block are decoded at once
from the last guesses, until they stand still), as the core's Jacobi window: a round keeps the guesses that came true
and moves the window on. Under sampling they are drawn with the target's noise (speculative Jacobi decoding, arXiv
2410.01699).
Guarantee: exact under every exact rule, whatever fills new slots.
Knobs: `k` is the window. `init` fills slots that enter it: `lookup` copies what followed the latest n-gram before,
`last` repeats the last token (the papers pad, or repeat), `random` is any token.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from mmspec.core.distributions import Distribution
from mmspec.core.drafters.initialisations import LeftUnit, RandomUnit
from mmspec.core.drafters.jacobi import Initialisation, Jacobi, Window
from mmspec.core.live import Live
from mmspec.core.noise import DraftNoise
from mmspec.core.protocols import Target
from mmspec.core.state import State
from mmspec.core.types import Draft
from mmspec.registry.options import option
from mmspec_text.drafters.prompt_lookup import PromptLookupOptions, copied
from mmspec_text.specs import JACOBI_TEXT


@dataclass(frozen=True)
class JacobiTextOptions:
    """Options of `jacobi-text`."""

    init: Literal["lookup", "last", "random"] = option(
        "lookup", "what fills slots that enter the window; exact whatever it is"
    )


@dataclass(frozen=True)
class CopiedUnit:
    """The unit that followed the latest n-gram before, at the same distance; the last unit where there was none."""

    reach, traceable = 0, True

    def fill(self, live: Live, window: Window, noise: DraftNoise) -> tuple[Tensor, Distribution | None]:
        last, _ = LeftUnit().fill(live, window, noise)
        k = window.units.shape[1]
        units, found = copied(PromptLookupOptions(), live.history, live.known - 1, live.pads, k)
        return torch.where(found, units, last), None


class JacobiText(Jacobi):
    """The core's Jacobi window on a text."""

    needs, offers = JACOBI_TEXT.needs, JACOBI_TEXT.offers

    def __init__(self, options: JacobiTextOptions = JacobiTextOptions()) -> None:
        super().__init__(LeftUnit())
        self.options = options

    def bind(self, target: Target) -> None:
        super().bind(target)
        assert target.vocab is not None
        fillings: dict[str, Initialisation] = {
            "lookup": CopiedUnit(),
            "last": LeftUnit(),
            "random": RandomUnit(target.vocab),
        }
        self.initialisation = fillings[self.options.init]

    def propose(self, state: State, k: int, noise: DraftNoise) -> Draft:
        return self.drafted(state.seen, state.memory, k, noise)
