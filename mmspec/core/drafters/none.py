"""Plain decoding: a drafter that never drafts."""

from collections.abc import Hashable
from typing import Any

import torch
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

    def inside(self, k: int, device: torch.device) -> "NothingInside":
        return NothingInside()


class NothingInside:
    """`NoDraft` inside a captured round."""

    parents = ()

    def load(self, drafter: Any) -> None:
        """Do nothing: there is no memory."""

    def unload(self, drafter: Any) -> None:
        """Do nothing: there is no memory."""

    def propose(self, live: Live) -> tuple[Tensor, Tensor]:
        nothing = live.root[:, None][:, :0]
        return nothing, nothing.bool()

    def observe(self, live: Live, step: Step) -> None:
        """Do nothing: there is no memory."""
