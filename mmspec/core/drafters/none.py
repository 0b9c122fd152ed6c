"""Plain decoding: a drafter that never drafts."""

from typing import Any

from mmspec.core.compile.protocols import DraftsOfRows
from mmspec.core.noise import DraftNoise
from mmspec.core.protocols import Target
from mmspec.core.state import State
from mmspec.core.types import Draft, Step


class NoDraft:
    """Proposes nothing, fits everything."""

    offers = frozenset({"chain"})
    needs: frozenset[str] = frozenset()
    everywhere = False

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

    def inside(self, k: int, state: State) -> DraftsOfRows:
        return DraftsOfRows((), lambda live: Draft.empty(live.root))

    def fits_inside(self, state: State) -> bool:
        return True
