"""Encoder families run as decoders (`is_decoder=True`): old, but `AutoModelForCausalLM` loads them."""

from typing import Any

from tests.support.zoo.recipe import Recipe

DECODER = dict(is_decoder=True)


def decoder(model_type: str, config: dict[str, Any] = DECODER, **values: Any) -> Recipe:
    """Normalised after every block, such models want smaller matrices and a larger embedding than others."""
    return Recipe(model_type, "encoder-as-decoder", config, **{"gain": 3.0, "embedding": 4.0, **values})


ENCODERS = {
    "bert": decoder("bert"),
    "bert-generation": decoder("bert-generation"),
    "camembert": decoder("camembert"),
    "data2vec-text": decoder("data2vec-text"),
    "ernie": decoder("ernie"),
    "roberta": decoder("roberta"),
    "roberta-prelayernorm": decoder("roberta-prelayernorm"),
    "roc_bert": decoder("roc_bert", dict(DECODER, pronunciation_vocab_size=32, shape_vocab_size=64)),
    "xlm-roberta": decoder("xlm-roberta"),
    "big_bird": decoder("big_bird", dict(DECODER, attention_type="original_full")),
    "electra": decoder("electra", salt=1),
    "megatron-bert": decoder("megatron-bert", embedding=16.0),
    "rembert": decoder("rembert", gain=4.0, embedding=1.0, head=8.0),
    "xlm-roberta-xl": decoder("xlm-roberta-xl", embedding=16.0, salt=1),
    "xmod": decoder("xmod", dict(DECODER, default_language="en_XX")),
}
"""Name → recipe."""
