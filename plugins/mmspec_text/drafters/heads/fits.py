"""Whether a head is one for this target."""

from typing import Any, Protocol

from mmspec.core.drafters.shapes import Shape
from mmspec.core.hidden import GivesHidden, Lends
from mmspec.core.protocols import Target
from mmspec.hosts.target import TransformersTarget


class Widths(Protocol):
    """What an architecture says of the target that it was made for."""

    @property
    def hidden(self) -> int:
        """Numbers of the head's states."""
        ...

    @property
    def target_hidden(self) -> int:
        """Numbers of the target's states."""
        ...

    @property
    def vocab(self) -> int:
        """Ids that it reads."""
        ...

    @property
    def draft_vocab(self) -> int:
        """Ids that it scores."""
        ...

    @property
    def own_embedding(self) -> bool:
        """Whether it has an embedding of its own."""
        ...


def refuse_states(name: str, head: Widths, target: Target) -> TransformersTarget:
    """The target, if it has the states that a head reads.

    Raises:
        ValueError: The target is no model of transformers, or has states of another width.
    """
    if not isinstance(target, TransformersTarget):
        raise ValueError(f"this head drafts for a model of transformers, and not for {type(target).__name__}")
    refuse_width(name, head, target)
    return target


def lending(name: str, head: Widths, target: Target) -> Lends:
    """The target, if it has the states that a head reads, and lends what the head uses.

    Raises:
        ValueError: It does not, or has states of another width.
    """
    if not isinstance(target, Lends):
        raise ValueError(
            f"a trained head reads the target's hidden states and embeddings, which {type(target).__name__} does not "
            "lend; models of transformers and LlamaGen do"
        )
    refuse_width(name, head, target)
    return target


def refuse_width(name: str, head: Widths, target: GivesHidden) -> None:
    """Refuse a target with states of another width.

    Raises:
        ValueError: They are of another width.
    """
    if head.target_hidden != target.hidden_size:
        raise ValueError(
            f"the head {name!r} reads states of {head.target_hidden} numbers, and those of the target have "
            f"{target.hidden_size}: it is a head of another target"
        )


def refuse_ids(name: str, head: Widths, target: Lends, shape: Shape) -> int:
    """The number of the target's ids, if a head reads and scores enough of them.

    Raises:
        ValueError: The target has other ids or embeddings, or the shape wants more siblings than the head scores.
    """
    assert target.vocab is not None
    table: Any = target.lend().embedding
    width = table.weight.shape[-1]
    if not head.own_embedding and width != head.hidden:
        raise ValueError(
            f"the head {name!r} has no embed_tokens.weight, and the target's embeddings have {width} numbers, not "
            f"its {head.hidden}"
        )
    if head.vocab < target.vocab:
        raise ValueError(
            f"the head {name!r} was made for {head.vocab} ids, and the target has {target.vocab}: it is a head of "
            "another target"
        )
    if shape.widest > head.draft_vocab:
        raise ValueError(f"{shape} wants {shape.widest} siblings, and the head scores {head.draft_vocab}")
    return target.vocab
