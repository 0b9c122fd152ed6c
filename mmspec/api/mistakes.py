"""Common mistakes: misspelt arguments, other libraries' names for ours, and objects that are not a live model."""

import functools
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn
from transformers import PreTrainedTokenizerBase, ProcessorMixin

from mmspec.registry.suggest import unknown

ARGUMENTS = ("method", "drafter", "rule", "k", "policy", "shape", "compile")
"""Arguments of `enable`, `custom_generate` and `Pipeline.use` beside the options of drafter, rule and policy."""

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
    "max_length": "max_new_tokens",
    "max_tokens": "max_new_tokens",
    "stop_strings": "stop",
    "cfg_scale": "guidance_scale",
    "num_images": "num_images_per_prompt",
}
"""Names that papers and other libraries use, and our argument of the same meaning."""

UNCALLED = (
    "custom_generate= takes what mmspec.custom_generate(…) returns: write custom_generate=mmspec.custom_generate(), or "
    "custom_generate=mmspec.custom_generate('prompt-lookup')"
)


def naming_arguments(call: Callable[..., Any]) -> Callable[..., Any]:
    """A pipeline's `__call__` that names, for an argument that it does not have, the nearest one and all there are."""
    takes = inspect.signature(call).parameters.values()
    if any(each.kind is each.VAR_KEYWORD for each in takes):
        return call
    names = [each.name for each in takes][1:]

    @functools.wraps(call)
    def named(self: Any, *args: Any, **kwargs: Any) -> Any:
        for name in kwargs:
            if name not in names:
                used = "; methods and their options are chosen with pipe.use(…)" if name in ARGUMENTS else ""
                raise TypeError(f"{type(self).__name__}: {unknown('argument', name, names, MEANT)}{used}")
        return call(self, *args, **kwargs)

    return named


def refuse_non_models(model: Any, taker: str = "mmspec.enable") -> None:
    """Refuse objects that are known to be no live model, and say what to pass instead.

    Args:
        model: What was passed.
        taker: What takes a live model, for the message.

    Raises:
        TypeError: Says what the object is, and what to do.
    """
    advice = _advice(model)
    if advice:
        raise TypeError(f"{taker} takes a live model, not {advice}")


def _advice(passed: Any) -> str:
    """What was passed instead of a model, and what to write; "" for everything that may be one."""
    kind = passed if isinstance(passed, type) else type(passed)
    if passed is None:
        return "None: load one, as with transformers' AutoModelForCausalLM.from_pretrained(name)"
    if isinstance(passed, str | Path):
        return (
            f"the name {str(passed)!r}: load it first, AutoModelForCausalLM.from_pretrained({str(passed)!r}), or let "
            f"mmspec.Pipeline.from_pretrained({str(passed)!r}) do it"
        )
    if isinstance(passed, type):
        return f"the class {kind.__name__}: make a model of it, as with {kind.__name__}.from_pretrained(name)"
    if isinstance(passed, nn.DataParallel | nn.parallel.DistributedDataParallel):
        return f"a {kind.__name__}, whose copies no generate runs: pass the model inside, model.module"
    if isinstance(passed, PreTrainedTokenizerBase | ProcessorMixin):
        return f"a {kind.__name__}: pass the model, whose generate is then sped up; it needs no tokenizer"
    if _is_pipeline(passed, "mmspec.api.pipeline"):
        return f"a {kind.__name__} of mmspec, which speculates as it is: choose how with pipe.use(method)"
    if _is_pipeline(passed, "transformers.pipelines"):
        return f"a {kind.__name__} of transformers: pass its model, mmspec.enable(pipe.model, …)"
    return ""


def _is_pipeline(passed: Any, module: str) -> bool:
    """Whether an object is a `Pipeline` of a module; if it is, the module was imported before."""
    home = sys.modules.get(module)
    return home is not None and isinstance(passed, home.Pipeline)
