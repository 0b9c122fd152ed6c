"""Every key of transformers' `MODEL_FOR_CAUSAL_LM_MAPPING_NAMES`: tested, refused, the code of another, or missing.

Written for the transformers of `constraints.txt`; another version may know more.
"""

from collections.abc import Mapping

from tests.support.zoo.recurrent import RECURRENT
from tests.support.zoo.refused import REFUSED

SAME: Mapping[str, str] = {
    "gemma3": "gemma3 in VISION, gemma3_text without pictures",
    "gemma3n": "gemma3n_text behind towers for pictures and sound",
    "gemma4": "gemma4_text behind towers for pictures and sound",
    "gemma4_unified": "gemma4_unified_text behind embedders for pictures and sound",
    "qwen3_5": "qwen3_5_text (recurrent) behind a tower for pictures",
    "qwen3_5_moe": "qwen3_5_moe_text (recurrent) behind a tower for pictures",
    "qwen4_exp": "qwen4_exp_text (refused) behind a tower for pictures",
    "dots3_note": "dots3_note_text (refused) behind towers for pictures and sound",
}
"""Key → the tested or refused model whose decoder it is."""

MISSING: Mapping[str, str] = {
    "blt": "its units are bytes in patches whose borders move with the text; no cache that units could be taken out of",
    "gemma4_assistant": "a drafter by itself: it reads the keys of a target that it must be given",
    "gemma4_unified_assistant": "a drafter by itself: it reads the keys of a target that it must be given",
    "musicgen": "its units are stacks of audio codes; the target is no text decoder",
    "musicgen_melody": "its units are stacks of audio codes; the target is no text decoder",
    "moss_transcribe_diarize": "needs sound in every prompt; its decoder is qwen3's",
}
"""Key → what it would need."""


def unaccounted(keys: set[str], tested: set[str]) -> set[str]:
    """Keys of a mapping about which nothing is said here.

    Args:
        keys: Model types.
        tested: Model types of the architectures that the tests run.
    """
    refused = {refused.recipe.model_type for refused in REFUSED.values()}
    recurrent = {recipe.model_type for recipe in RECURRENT.values()}
    return keys - tested - refused - recurrent - set(SAME) - set(MISSING)
