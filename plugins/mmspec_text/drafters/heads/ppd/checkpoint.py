"""Reading trained prompt tokens: an adapter of PEFT as the authors' code writes it.

`adapter_model.safetensors` holds `prompt_embeddings` `[prompt tokens, hidden]`; `adapter_config.json` says how many
there are, and which variants were trained. The authors' decoding takes one embedding for each prompt token, and so does
ours; more of them (`virtual_tokens_per_special_token`) are refused, and so are an output layer of their own, a trained
prefix, and states that are means of several layers.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from mmspec.registry.printable import shown
from mmspec_text.drafters.heads.adapter import read_adapter, refuse_unread
from mmspec_text.drafters.heads.values import positive

KEY = "prompt_embeddings"
VARIANTS: Mapping[str, object] = {
    "virtual_tokens_per_special_token": 1,
    "num_exits": 1,
    "use_custom_lm_head": False,
    "use_prefix_tuning": False,
}
"""Entries of the config for what is computed here; others are refused."""


@dataclass(frozen=True)
class Prompts:
    """Trained prompt tokens."""

    name: str  # where they are from, for messages
    embeddings: Tensor  # `[prompt token, hidden]`: number i, behind a unit, scores the unit i + 2 places behind it


def read_prompts(name: str) -> Prompts:
    """Read prompt tokens.

    Args:
        name: A folder, or a hub name.

    Raises:
        ValueError: There is no such adapter, it is damaged, or of a variant that is not computed here.
    """
    what = f"the prompt tokens {name!r}"
    config, tensors = read_adapter(name, what)
    found = [key for key in tensors if key.split(".")[-1] == KEY]
    if len(found) != 1 or tensors[found[0]].dim() != 2:
        there = ", ".join(sorted(tensors)[:3]) or "none"
        raise ValueError(f"{what} have no matrix {KEY}: it is no adapter of prompt tokens. Its keys are {shown(there)}")
    refuse_unread(tensors, found, what)
    _refuse_variants(config, what)
    count = positive(config, "num_special_tokens", what)
    if len(tensors[found[0]]) != count:
        raise ValueError(f"{what}: num_special_tokens is {count}, and there are {len(tensors[found[0]])} embeddings")
    return Prompts(name, tensors[found[0]])


def _refuse_variants(config: Mapping[str, Any], what: str) -> None:
    for entry, value in VARIANTS.items():
        given = config.get(entry)
        if given is not None and given != value:
            raise ValueError(f"{what} were trained with {entry} = {shown(repr(given))}; {value!r} is what is computed")
