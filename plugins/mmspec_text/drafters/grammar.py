"""Drafts along a grammar: units that it leaves no choice about, and, where it does, what followed in the text before.

Where structured generation is constrained by an `mmspec.Grammar`, much of the text is decided: keys, quotes, brackets.
SGLang's jump-forward decoding (arXiv 2312.07104, § 4) writes such units without the model; here they are drafted and
verified, because a text that is decided has several encodings, of which the model's own is emitted. At a choice the
draft goes on with what most often followed the end of the text (`suffix`), if the grammar allows it. Calls
without a `Grammar` are drafted for as by `suffix`.
Guarantee: drafts are point masses; exact under every rule that takes chains of them.
Knobs: a higher `threshold` drafts less at choices and is accepted more often.
"""

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from mmspec.core.drafters.host import chains
from mmspec.core.grammar import Followed, Grammar
from mmspec.core.noise import DraftNoise
from mmspec.core.protocols import Target
from mmspec.core.state import State
from mmspec.core.types import Draft, Step
from mmspec.registry.options import option
from mmspec_text.drafters.suffix import Suffix, SuffixMemory, SuffixOptions, SuffixRow
from mmspec_text.drafters.suffix_texts import LONGEST
from mmspec_text.specs import GRAMMAR


@dataclass(frozen=True)
class GrammarOptions:
    """Options of `grammar`."""

    threshold: Annotated[float, Field(ge=0, lt=1)] = option(
        0.1, "stop where a path's estimated probability falls below; higher drafts less"
    )


class GrammarDrafter:
    """See the module."""

    needs, offers = GRAMMAR.needs, GRAMMAR.offers

    def __init__(self, options: GrammarOptions = GrammarOptions()) -> None:
        self.options = options
        self._suffix = Suffix(SuffixOptions(threshold=options.threshold))

    def bind(self, target: Target) -> None:
        self._suffix.bind(target)

    def width(self, k: int) -> int:
        return k

    def start(self, state: State, inputs: Any) -> SuffixMemory:
        return self._suffix.start(state, inputs)

    def propose(self, state: State, k: int, noise: DraftNoise) -> Draft:
        grammar = next((p for p in state.warp.processors if isinstance(p, Grammar)), None)
        if grammar is None:
            return self._suffix.propose(state, k, noise)
        drafts = list[list[int]]()
        for b, row in enumerate(self._suffix.caught_up(state)):
            emitted = row.text.units[row.text.length - state.host.emitted[b] :].tolist()
            followed = None if state.host.done[b] else grammar.behind(b, emitted)
            drafts.append([] if followed is None else self._walk(row, followed, k))
        return chains(drafts, state.root.device)

    def observe(self, state: State, step: Step) -> None:
        self._suffix.observe(state, step)

    def _walk(self, row: SuffixRow, followed: Followed, k: int) -> list[int]:
        """Up to `k` units along the grammar; where these are decided, as they were encoded in the text before."""
        path, survival = list[int](), 1.0
        while len(path) < k:
            forced = followed.forced()[:1]
            guess = self._suffix.continued(row, np.append(row.text.units[-LONGEST:], path).astype(np.int32), 1)
            if guess and (forced or survival * guess[0].chance >= self.options.threshold):
                taken = followed.taken([guess[0].unit])
                survival *= 1.0 if forced else guess[0].chance
            else:
                taken = []
            taken = taken or followed.taken(forced)
            if not taken:
                break
            path += taken
        return path
