"""Plain decoding: a drafter that never drafts."""

from collections.abc import Hashable, Sequence
from typing import Any

from torch import Tensor

from mmspec.core.live import Live
from mmspec.core.noise import DraftNoise
from mmspec.core.protocols import Target
from mmspec.core.state import State
from mmspec.core.types import Draft, Step


class NoDraft:
    """Proposes nothing, fits everything."""

    offers = frozenset({"chain"})
    needs: frozenset[str] = frozenset()

    def bind(self, target: Target) -> None:
        pass

    def width(self, k: int) -> int:
        return 0

    def start(self, state: State, inputs: Any) -> Any:
        return None

    def propose(self, state: State, k: int, noise: DraftNoise) -> Draft:
        return Draft.empty(state.root)

    def observe(self, state: State, step: Step) -> None:
        pass

    @property
    def captured_key(self) -> Hashable:
        return ()

    def tree_inside(self, k: int) -> Sequence[int]:
        return ()

    def propose_inside(self, live: Live, k: int) -> tuple[Tensor, Tensor]:
        nothing = live.root[:, None][:, :0]
        return nothing, nothing.bool()

    def observe_inside(self, live: Live, step: Step) -> None:
        pass
