"""Small heads of P-EAGLE, of random weights, in the layouts of speculators and of the EAGLE kits."""

from tests.support.eagle_layouts import (
    HIDDEN,
    OWN,
    PRUNED,
    ROPE,
    SECOND,
    TARGET,
    THIRD,
    VOCAB,
    Stored,
    flags,
    layer,
    sizes,
    third,
    under,
)

MASK = 7
UNKNOWN = {"mask_hidden": (1, 1, 3 * TARGET)}
DEEP = {**layer(1, HIDDEN, HIDDEN), "layers.1.input_layernorm.weight": (HIDDEN,)}
SPECULATORS = {
    "speculators_model_type": "peagle",
    "transformer_layer_config": sizes(HIDDEN, rope_parameters=ROPE, num_hidden_layers=2),
    "draft_vocab_size": PRUNED,
    "target_hidden_size": TARGET,
    "eagle_aux_hidden_state_layer_ids": [1, 2, 4],
    "mask_token_id": MASK,
}
LAYOUTS: dict[str, Stored] = {
    "speculators": Stored(
        SPECULATORS,
        lambda key: key,
        flags(HIDDEN, theta=5000.0),
        {**third(HIDDEN), **OWN, **DEEP, **UNKNOWN},
        extra=("verifier_norm.weight",),
    ),
    "speculators-norms": Stored(
        {**SPECULATORS, "norm_before_residual": True, "norm_before_fc": True},
        lambda key: key,
        flags(HIDDEN, theta=5000.0, norm_before_residual=True, norm_before_fc=True),
        {**third(HIDDEN), **OWN, **DEEP, **UNKNOWN, "input_norm.weight": (3 * TARGET,)},
    ),
    "eagle": Stored(
        {**sizes(draft_vocab_size=VOCAB, num_hidden_layers=2), "parallel_drafting": True, "ptd_token_id": MASK},
        under("midlayer."),
        flags(),
        {**third(TARGET, draft=VOCAB), **SECOND, **UNKNOWN},
        pruned=False,
    ),
    "modelopt": Stored(
        {**sizes(), **THIRD, "eagle_config": {"pard_token": MASK, "eagle_aux_hidden_state_layer_ids": [0, 1, 3]}},
        lambda key: key,
        flags(),
        {**third(TARGET), **UNKNOWN},
    ),
}
"""Name → layout. Ids of layers are for a target of six."""
