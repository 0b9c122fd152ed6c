"""What differs between heads of the EAGLE family, as data.

EAGLE (Li et al., arXiv 2401.15077), EAGLE-2 (2406.16858, which has EAGLE's heads), EAGLE-3 (2503.01840) and 3.1
(2605.09992). The published versions are points in this space, and so is what training kits made of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Architecture:
    """The shape of a head, and its switches.

    Attributes:
        hidden: Numbers of its states.
        intermediate: Numbers inside its MLPs.
        heads: Attention heads.
        key_heads: Heads of keys and values.
        head_dim: Numbers of an attention head.
        layers: Attention layers.
        vocab: Rows of its own embedding, if it has one.
        draft_vocab: Rows of its own output layer, if it has one.
        features: States of the target in one feature.
        target_hidden: Numbers of each of them.
        fused: The first layer attends over embedding and state side by side (EAGLE-3). Else `fc` joins the two, and the
            feature is the target's last state behind its final norm (EAGLE-1).
        projected: Whether `fc` turns features into states, where the first layer is fused.
        own_embedding: Whether the checkpoint has an embedding; else it is the target's.
        own_output: Whether it has an output layer; else it is the target's.
        final_norm: Whether states are normalised before the output layer.
        embedding_norm: Whether embeddings are normalised before `fc` joins them.
        first_norms: Which norms the first layer has: of `input_layernorm` (embeddings; of the joined states, if the
            layer is not fused) and `hidden_norm` (states).
        deep_norm: Name of the norm of layers behind the first one.
        norm_before_residual: The residual of the first layer is the normalised state.
        norm_before_fc: One norm over a whole feature.
        fc_norm: One norm for each of its states.
        norm_output: The state that is fed back is normalised (3.1).
        head_norms: Queries and keys are normalised head by head.
        biases: Linear layers with a bias, by the ends of their names.
        eps: Of the norms.
        activation: Of the MLPs.
        rope: Rotary parameters as transformers names them.
        window: Rows that attention covers; None: all.
        block: k, units that a pass scores. If more than 1, the predicted feature lies so far ahead, and an LSTM that is
            run over every row alone joins embedding and feature, instead of `fc` (Falcon).
        grid: Units stand on the target's grid, whose rotary positions the head shares (LANTERN).
        parallel: It has a feature for units that are not known, and drafts all units in one pass (P-EAGLE).
    """

    hidden: int
    intermediate: int
    heads: int
    key_heads: int
    head_dim: int
    layers: int
    vocab: int
    draft_vocab: int
    features: int
    target_hidden: int
    fused: bool
    projected: bool
    own_embedding: bool
    own_output: bool
    final_norm: bool
    embedding_norm: bool
    first_norms: frozenset[str]
    deep_norm: str = "input_layernorm"
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False
    head_norms: bool = False
    biases: frozenset[str] = frozenset()
    eps: float = 1e-6
    activation: str = "silu"
    rope: Mapping[str, Any] = field(default_factory=dict)
    window: int | None = None
    parallel: bool = False
    grid: bool = False
    block: int = 1

    @property
    def width(self) -> int:
        """Numbers of one feature."""
        return self.features * self.target_hidden
