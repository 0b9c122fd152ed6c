"""What differs between DFlash heads, as data: DFlash (arXiv 2602.06036), DSpark (2607.05147)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Sequel = Literal["vanilla", "gated", "rnn"]


@dataclass(frozen=True)
class Sight:
    """What the rows of a block see in one layer.

    Attributes:
        window: Rows of the known text that are seen; None: all.
        causal: Whether rows see only those before them in the block, and not all of it.
        from_root: Whether the window ends at the root for all rows of the block, and not at each row.
    """

    window: int | None = None
    causal: bool = False
    from_root: bool = False


@dataclass(frozen=True)
class DFlashArchitecture:
    """The shape of a head.

    Attributes:
        hidden: Numbers of its states.
        intermediate: Numbers inside its MLPs.
        heads: Attention heads.
        key_heads: Heads of keys and values.
        head_dim: Numbers of an attention head.
        sights: What each of its layers sees.
        vocab: Rows of its own embedding, if it has one.
        draft_vocab: Rows of its own output layer, if it has one.
        features: States of the target in one feature.
        target_hidden: Numbers of each of them.
        own_embedding: Whether the checkpoint has an embedding; else it is the target's.
        own_output: Whether it has an output layer; else it is the target's.
        own_mask: Whether it has a state of its own for units that are not known (`mask_embedding`).
        block: Rows of a block, the root included.
        mask_token: The id that stands for units that are not known; None only with `own_mask`.
        from_root: Whether the root's row scores the first unit, so that a block has `block` units, and not one less.
        sequel: The kind of Markov head; None: there is none.
        rank: Numbers of its states.
        head_norms: Queries and keys are normalised head by head.
        sinks: Attention heads have a logit that takes weight.
        biases: Linear layers with a bias, by the ends of their names.
        eps: Of the norms.
        activation: Of the MLPs.
        scale: Factor of the logits.
        rope: Rotary parameters as transformers names them.
    """

    hidden: int
    intermediate: int
    heads: int
    key_heads: int
    head_dim: int
    sights: tuple[Sight, ...]
    vocab: int
    draft_vocab: int
    features: int
    target_hidden: int
    own_embedding: bool
    own_output: bool
    own_mask: bool
    block: int
    mask_token: int | None
    from_root: bool
    sequel: Sequel | None = None
    rank: int = 0
    head_norms: bool = True
    sinks: bool = False
    biases: frozenset[str] = frozenset()
    eps: float = 1e-6
    activation: str = "silu"
    scale: float = 1.0
    rope: Mapping[str, Any] = field(default_factory=dict)

    @property
    def units(self) -> int:
        """Units of a block."""
        return self.block - (0 if self.from_root else 1)
