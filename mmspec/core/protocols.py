"""What the loop asks of a target and of a drafter. Implement these; inherit nothing."""

from typing import Any, Protocol

from torch import Tensor

from mmspec.core.noise import DraftNoise
from mmspec.core.state import State
from mmspec.core.types import Draft, Started, Step, TargetOutput


class Target(Protocol):
    """The model whose distribution the output follows.

    Attributes:
        offers: Words that methods match against: `discrete`, `continuous`, `tree` (verifies trees), `grow` (a
            draft may be verified in pieces, so that it can itself draft for a larger target), `truncate`, ….
        vocab: Number of unit ids of a discrete target; None otherwise.
    """

    offers: frozenset[str]
    vocab: int | None

    def start(self, inputs: Any, limit: int, width: int) -> Started:
        """Prefill.

        Args:
            inputs: What this target calls a prompt.
            limit: New units wanted per row.
            width: Most nodes of a draft, root included: what the cache must hold beyond the units.

        Raises:
            ValueError: The prompt is empty or does not fit.
        """
        ...

    def verify(self, cache: Any, draft: Draft, first: int = 0) -> TargetOutput:
        """Score a rooted draft in one pass. Writes scratch only: nothing is committed.

        Args:
            cache: The call's memory.
            draft: Rooted.
            first: Only targets that offer `grow` are asked for more than 0: the nodes before `first` were scored since
                the last commit, as the same nodes of a smaller draft, and only the scores from `first` on are returned.
        """
        ...

    def commit(self, cache: Any, path: Tensor, count: Tensor) -> None:
        """Keep the root and the first `count - 1` nodes of `path [batch, depth]`; `count` is 0 in finished rows.

        Where the truth hit a draft, `path[:, count - 1]` is the node of the new root: a target may keep what it made.
        """
        ...

    def truncate(self, cache: Any, length: Tensor) -> None:
        """Forget all but the first `length [batch]` units, prompt included, padding not; if `truncate` is offered."""
        ...


class Drafter(Protocol):
    """Proposes units cheaply.

    Attributes:
        offers: `chain` or `tree`, and `q` where drafts carry a distribution.
        needs: Words that target and rule must offer between them: `hidden`, `redraw`, `rerank`, …

    What a drafter may have beside: `mmspec.core.capabilities`.
    """

    offers: frozenset[str]
    needs: frozenset[str]

    def bind(self, target: Target) -> None:
        """Meet the target once; refuse it with a reason if it does not fit.

        Raises:
            ValueError: The two cannot work together.
        """
        ...

    def width(self, k: int) -> int:
        """Most nodes that a draft of budget `k` has, the root not counted."""
        ...

    def start(self, state: State, inputs: Any) -> Any:
        """A call begins (the prompt is in `state.history`). Returns the call's memory, kept as `state.memory`.

        Raises:
            ValueError: This call is none for the drafter; says why. Anything else that is raised, here or later, is a
                fault (`mmspec.core.guard`): the call goes on without drafts.
        """
        ...

    def propose(self, state: State, k: int, noise: DraftNoise) -> Draft:
        """Draft at most `k` units per path.

        Args:
            state: The call; `state.root` is what the draft hangs on.
            k: Budget of the round.
            noise: The noise that sampled drafts must use under the rule at hand.

        Returns:
            The draft; units have the dtype of `state.root`. One that cannot be verified is a fault: that round, and no
            other, runs without it.
        """
        ...

    def observe(self, state: State, step: Step) -> None:
        """A round was settled; called every round, also after an empty draft."""
        ...
