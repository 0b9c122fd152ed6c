"""The protocols of a target and of a drafter. Implement these; inherit nothing."""

from typing import Any, Protocol

from torch import Tensor

from mmspec.core.noise import DraftNoise
from mmspec.core.state import State
from mmspec.core.types import Draft, Prefill, Step, TargetOutput


class Target(Protocol):
    """The model whose distribution the output follows. Optional members: `mmspec.core.capabilities`.

    Attributes:
        offers: Words that methods are matched against: `discrete`, `continuous`, `tree` (verifies trees), `grow` (a
            draft may be verified in pieces, so that the target can itself be a draft model), `truncate`, ….
        vocab: Number of unit ids of a discrete target; None otherwise.
    """

    offers: frozenset[str]
    vocab: int | None

    def start(self, inputs: Any, limit: int, width: int) -> Prefill:
        """Prefill.

        Args:
            inputs: The prompt, in this target's own type.
            limit: New units wanted per row.
            width: Most nodes of a draft, root included: what the cache must hold beside the units.

        Raises:
            ValueError: The prompt is empty or does not fit.
        """

    def verify(self, cache: Any, draft: Draft, first: int = 0) -> TargetOutput:
        """Score a rooted draft in one pass. Nothing is committed: only scratch parts of the cache are written.

        Args:
            cache: The target's cache of the call.
            draft: The rooted draft.
            first: Above 0 only for targets that offer `grow`: the nodes before `first` were already scored since the
                last commit, as the same nodes of a smaller draft, and only scores from `first` on are returned.
        """

    def commit(self, cache: Any, path: Tensor, count: Tensor) -> None:
        """Keep the root and the first `count - 1` nodes of `path [batch, depth]`; `count` is 0 in finished rows.

        If a truth was given and drafted, `path[:, count - 1]` is the node of the new root: its state may be kept.
        """

    def truncate(self, cache: Any, length: Tensor) -> None:
        """Drop all but the first `length [batch]` units, prompt included, padding excluded; for `truncate`."""


class Drafter(Protocol):
    """Proposes units cheaply. Optional members: `mmspec.core.capabilities`.

    Attributes:
        offers: `chain` or `tree`, and `q` if drafts have a distribution.
        needs: Words that target and rule together must offer: `hidden`, `redraw`, `rerank`, …
    """

    offers: frozenset[str]
    needs: frozenset[str]

    def bind(self, target: Target) -> None:
        """Take what the drafter needs from the target; called once, before any call.

        Raises:
            ValueError: The two cannot work together; says why.
        """

    def width(self, k: int) -> int:
        """Most nodes that a draft of budget `k` has, the root not counted."""

    def start(self, state: State, inputs: Any) -> Any:
        """Begin a call, after prefill (the prompt is in `state.history`). The result is kept as `state.memory`.

        Raises:
            ValueError: The drafter cannot serve this call; says why. All other exceptions, here or later, are faults
                (`mmspec.core.proposer`): the call goes on without drafts.
        """

    def propose(self, state: State, k: int, noise: DraftNoise) -> Draft:
        """Draft at most `k` units per path.

        Args:
            state: The call; the draft continues after `state.root`.
            k: Budget of the round.
            noise: The noise that sampled drafts must use under the call's rule.

        Returns:
            The draft; units have the dtype of `state.root`. A malformed draft is a fault: this round runs without it.
        """

    def observe(self, state: State, step: Step) -> None:
        """See a settled round; called every round, also after an empty draft."""
