"""What differs between heads of the EAGLE family, as data.

EAGLE (Li et al., arXiv 2401.15077), EAGLE-2 (2406.16858, which has EAGLE's heads), EAGLE-3 (2503.01840) and 3.1
(2605.09992). The published versions are points in this space, and so is what training kits made of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Architecture:
    """The shape of a head, and its switches."""

    hidden: int  # numbers of its states
    intermediate: int  # numbers inside its MLPs
    heads: int  # attention heads
    key_heads: int  # heads of keys and values
    head_dim: int  # numbers of an attention head
    layers: int  # attention layers
    vocab: int  # rows of its own embedding, if it has one
    draft_vocab: int  # rows of its own output layer, if it has one
    features: int  # states of the target in one feature
    target_hidden: int  # numbers of each of them
    # The first layer attends over embedding and state side by side (EAGLE-3). Else `fc` joins the two, and the feature
    # is the target's last state behind its final norm (EAGLE-1).
    fused: bool
    projected: bool  # whether `fc` turns features into states, where the first layer is fused
    own_embedding: bool  # whether the checkpoint has an embedding; else it is the target's
    own_output: bool  # whether it has an output layer; else it is the target's
    final_norm: bool  # whether states are normalised before the output layer
    embedding_norm: bool  # whether embeddings are normalised before `fc` joins them
    # Which norms the first layer has: of `input_layernorm` (embeddings; of the joined states, if the layer is not
    # fused) and `hidden_norm` (states)
    first_norms: frozenset[str]
    deep_norm: str = "input_layernorm"  # name of the norm of layers behind the first one
    norm_before_residual: bool = False  # the residual of the first layer is the normalised state
    norm_before_fc: bool = False  # one norm over a whole feature
    fc_norm: bool = False  # one norm for each of its states
    norm_output: bool = False  # the state that is fed back is normalised (3.1).
    head_norms: bool = False  # queries and keys are normalised head by head
    biases: frozenset[str] = frozenset()  # linear layers with a bias, by the ends of their names
    eps: float = 1e-6  # of the norms
    activation: str = "silu"  # of the MLPs
    rope: Mapping[str, Any] = field(default_factory=dict)  # rotary parameters as transformers names them
    window: int | None = None  # rows that attention covers; None: all
    parallel: bool = False  # it has a feature for units that are not known, and drafts all units in one pass (P-EAGLE)
    grid: bool = False  # units stand on the target's grid, whose rotary positions the head shares (LANTERN)
    # k, units that a pass scores. If more than 1, the predicted feature lies so far ahead, and an LSTM that is run over
    # every row alone joins embedding and feature, instead of `fc` (Falcon).
    block: int = 1

    @property
    def width(self) -> int:
        """Numbers of one feature."""
        return self.features * self.target_hidden
