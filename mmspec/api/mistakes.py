"""What users mix up: other libraries' names for our arguments, and things that are not the live model."""

import sys
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase, ProcessorMixin

ARGUMENTS = ("method", "drafter", "rule", "k", "policy")
"""What every face takes beside options of drafter, rule and policy."""

MEANT = {
    "assistant_model": "drafter",
    "draft_model": "drafter",
    "speculative_model": "drafter",
    "acceptance_rule": "rule",
    "window": "k",
    "gamma": "k",
    "lookahead": "k",
    "num_assistant_tokens": "k",
    "num_draft_tokens": "k",
    "prompt_lookup_num_tokens": "k",
    "speculation_length": "policy",
    "generator": "seed",
}
"""What names of papers and other libraries are called here."""

UNCALLED = (
    "custom_generate= takes what mmspec.custom_generate(…) returns: write custom_generate=mmspec.custom_generate(), or "
    "custom_generate=mmspec.custom_generate('prompt-lookup')"
)


def refuse_strangers(model: Any) -> None:
    """Refuse what is no live model, where it can be said what to call instead.

    Raises:
        TypeError: Says what it is, and what to do.
    """
    remedy = _remedy(model)
    if remedy:
        raise TypeError(f"mmspec.enable takes a live model, not {remedy}")


def _remedy(given: Any) -> str:
    """What was given, and what to write; "" where nothing is wrong as far as can be told."""
    kind = given if isinstance(given, type) else type(given)
    if given is None:
        return "None: load one, as with transformers' AutoModelForCausalLM.from_pretrained(name)"
    if isinstance(given, str | Path):
        return (
            f"the name {str(given)!r}: load it first, AutoModelForCausalLM.from_pretrained({str(given)!r}), or let "
            f"mmspec.Pipeline.from_pretrained({str(given)!r}) do it"
        )
    if isinstance(given, type):
        return f"the class {kind.__name__}: make a model of it, as with {kind.__name__}.from_pretrained(name)"
    if isinstance(given, PreTrainedTokenizerBase | ProcessorMixin):
        return f"a {kind.__name__}: pass the model, whose generate is then sped up; it needs no tokenizer"
    if _loaded("mmspec.api.pipeline", "Pipeline", given):
        return f"a {kind.__name__} of mmspec, which speculates as it is: choose how with pipe.use(method)"
    if _loaded("transformers.pipelines", "Pipeline", given):
        return f"a {kind.__name__} of transformers: pass its model, mmspec.enable(pipe.model, …)"
    return ""


def _loaded(module: str, name: str, given: Any) -> bool:
    """Whether something is of a class, without importing its home: then it would be there."""
    home = sys.modules.get(module)
    return home is not None and isinstance(given, getattr(home, name))
