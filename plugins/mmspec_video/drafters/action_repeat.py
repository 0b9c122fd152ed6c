"""`action-repeat`: guess that the player repeats the last action.

The guess of Next-Frame Diffusion (arXiv 2506.01380, § 3.4): most of the time a key stays pressed.
Guarantee: none is needed; the player's actions decide, and a frame does not depend on when it was made.
Knobs: `k`, how far ahead: frames after a wrong guess are discarded.
"""

from mmspec.core.drafters.none import Memoryless
from mmspec.core.noise import DraftNoise
from mmspec.core.protocols import Target
from mmspec.core.state import State
from mmspec.core.types import Draft
from mmspec_video.specs import ACTION_REPEAT


class ActionRepeat(Memoryless):
    needs, offers = ACTION_REPEAT.needs, ACTION_REPEAT.offers

    def bind(self, target: Target) -> None:
        pass

    def width(self, k: int) -> int:
        return k

    def propose(self, state: State, k: int, noise: DraftNoise) -> Draft:
        return Draft.chain(state.root[:, None].expand(-1, k))
