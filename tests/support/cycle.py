"""A policy of budgets in turn, empty rounds among them."""

import itertools
from collections.abc import Sequence

from mmspec.core.types import Draft


class Cycle:
    def __init__(self, *budgets: int) -> None:
        self._budgets = itertools.cycle(budgets)

    def budget(self) -> int:
        return next(self._budgets)

    def trim(self, draft: Draft) -> Draft:
        return draft

    def observe(self, depth: int, emitted: Sequence[int], seconds: float) -> None:
        pass
