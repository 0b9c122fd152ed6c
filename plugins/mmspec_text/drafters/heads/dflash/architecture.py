"""What differs between DFlash heads, as data: DFlash (arXiv 2602.06036), DSpark (2607.05147)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Sequel = Literal["vanilla", "gated", "rnn"]


@dataclass(frozen=True)
class Sight:
    """What the rows of a block see in one layer."""

    window: int | None = None  # rows of the known text that are seen; None: all
    causal: bool = False  # whether rows see only those before them in the block, and not all of it
    from_root: bool = False  # whether the window ends at the root for all rows of the block, and not at each row


@dataclass(frozen=True)
class DFlashArchitecture:
    """The shape of a head."""

    hidden: int  # numbers of its states
    intermediate: int  # numbers inside its MLPs
    heads: int  # attention heads
    key_heads: int  # heads of keys and values
    head_dim: int  # numbers of an attention head
    sights: tuple[Sight, ...]  # what each of its layers sees
    vocab: int  # rows of its own embedding, if it has one
    draft_vocab: int  # rows of its own output layer, if it has one
    features: int  # states of the target in one feature
    target_hidden: int  # numbers of each of them
    own_embedding: bool  # whether the checkpoint has an embedding; else it is the target's
    own_output: bool  # whether it has an output layer; else it is the target's
    own_mask: bool  # whether it has a state of its own for units that are not known (`mask_embedding`)
    block: int  # rows of a block, the root included
    mask_token: int | None  # the id that stands for units that are not known; None only with `own_mask`
    from_root: bool  # whether the root's row scores the first unit, so that a block has `block` units, and not one less
    sequel: Sequel | None = None  # the kind of Markov head; None: there is none
    rank: int = 0  # numbers of its states
    head_norms: bool = True  # queries and keys are normalised head by head
    sinks: bool = False  # attention heads have a logit that takes weight
    biases: frozenset[str] = frozenset()  # linear layers with a bias, by the ends of their names
    eps: float = 1e-6  # of the norms
    activation: str = "silu"  # of the MLPs
    scale: float = 1.0  # factor of the logits
    rope: Mapping[str, Any] = field(default_factory=dict)  # rotary parameters as transformers names them

    @property
    def units(self) -> int:
        """Units of a block."""
        return self.block - (0 if self.from_root else 1)
