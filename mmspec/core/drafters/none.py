"""Plain decoding: a drafter that never drafts; and what it shares with others that keep nothing of a call."""

from typing import Any

from mmspec.core.compile.protocols import DraftsOfRows
from mmspec.core.noise import DraftNoise
from mmspec.core.protocols import Target
from mmspec.core.state import State
from mmspec.core.types import Draft, Step


class Memoryless:
    """A drafter that keeps nothing of a call beside its known units."""

    def start(self, state: State, inputs: Any) -> None:
        return None

    def observe(self, state: State, step: Step) -> None:
        pass


class NoDraft(Memoryless):
    """Proposes nothing, fits everything."""

    offers = frozenset({"chain"})
    needs: frozenset[str] = frozenset()
    everywhere = False

    def bind(self, target: Target) -> None:
        pass

    def width(self, k: int) -> int:
        return 0

    def propose(self, state: State, k: int, noise: DraftNoise) -> Draft:
        return Draft.empty(state.root)

    def inside(self, k: int, state: State) -> DraftsOfRows:
        return DraftsOfRows((), lambda live: Draft.empty(live.root))

    def fits_inside(self, state: State) -> bool:
        return True
