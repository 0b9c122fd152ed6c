"""Refusals by name, before anything runs: arguments of `generate` that speculation does not support;
misspelt arguments, and other libraries' names for ours; objects that are not a live model; classes whose `generate`
cannot be replaced. What replaces it calls the class's own with `custom_generate=`, which has to arrive at transformers'
own; classes may take arguments in an order of their own, hand a call on to a part, or run a loop of their own.

Settings that say how much transformers' own assistants draft change no output; they are named in a warning.
"""

import functools
import inspect
import sys
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from torch import nn
from transformers import GenerationConfig, GenerationMixin, PreTrainedModel, PreTrainedTokenizerBase, ProcessorMixin

from mmspec.core.refusal import OutOfScopeError
from mmspec.hosts.export import refuse_foreign
from mmspec.hosts.model_info import unwrapped
from mmspec.registry import TargetSpec, installed
from mmspec.registry.suggest import unknown
from mmspec.registry.warn import warn

_REFUSED = {
    "constraints": "has no constrained beams",
    "force_words_ids": "has no constrained beams",
    "penalty_alpha": "has no contrastive search",
    "dola_layers": "has no DoLa",
    "output_attentions": "keeps no attentions",
    "output_hidden_states": "keeps no hidden states",
    "prompt_lookup_num_tokens": "is the speculation itself; use the method prompt-lookup",
    "speculation_type": "is the speculation itself; name a method, such as dflash",
    "assistant_ensemble_weight": "keeps the target's distribution; rules that do not are named with rule=",
    "assistant_early_exit": "is the speculation itself, and has no early exit",
    "use_mtp": "is the speculation itself, and does not use the model's own heads here",
    "token_healing": "passes the prompt on as it is",
}
ASKED = "num_assistant_tokens"
_NO_EFFECT = (
    ASKED,
    "num_assistant_tokens_schedule",
    "assistant_confidence_threshold",
    "max_matching_ngram_size",
    "assistant_lookbehind",
    "target_lookbehind",
)
_REFUSED_ARGUMENTS = ("assistant_model", "assistant_tokenizer", "custom_generate", "synced_gpus")
_REFUSED_CACHES = ("quantized", "offloaded", "paged")
CACHE_ARGUMENTS = ("past_key_values", "cache_params")
"""The argument of `generate` that takes a cache; the second name is that of models which keep states, not keys."""


def refuse_arguments(arguments: Mapping[str, Any]) -> None:
    """Refuse arguments of `generate` that are not part of a generation configuration."""
    for name in _REFUSED_ARGUMENTS:
        if arguments.get(name) not in (None, False):
            raise OutOfScopeError(f"{name}= cannot be combined with mmspec.enable; call disable() first")


def refuse_settings(config: GenerationConfig | Mapping[str, Any]) -> None:
    """Refuse settings of a generation configuration, or arguments that will become part of one."""

    def setting(name: str) -> Any:
        return config.get(name) if isinstance(config, Mapping) else getattr(config, name, None)

    beams = setting("num_beams")
    if beams not in (None, 1):
        raise OutOfScopeError(
            f"num_beams={beams!r}: beam search is not speculative; call disable() first, or use num_beams=1"
        )
    for name, why in _REFUSED.items():
        if setting(name):
            raise OutOfScopeError(f"{name}={setting(name)!r} is not supported here: mmspec {why}")
    cache = setting("cache_implementation") or ""
    if any(word in cache for word in _REFUSED_CACHES):
        raise OutOfScopeError(f"cache_implementation={cache!r} is not supported here: mmspec keeps its own cache")


def warn_of_no_effect(config: GenerationConfig, read: Collection[str] = ()) -> None:
    """Warn of settings for transformers' own assistants, but those that are `read`, that differ from its defaults."""
    usual, given = GenerationConfig._get_default_generation_params(), config.to_dict()
    names = [name for name in _NO_EFFECT if name not in read and given.get(name) not in (None, usual.get(name))]
    said = [f"{name}={given[name]!r}" for name in names]
    if said:
        warn(
            f"{', '.join(said)} {'have' if len(said) > 1 else 'has'} no effect under mmspec, which reads k= (how much "
            "is drafted), policy= (a length that changes) and the drafter's own options, all of mmspec.enable"
        )


def asked_tokens(model: Any) -> int | None:
    """Units per draft that a live draft model's own configuration asks for, as transformers reads them; its other
    settings of assisted generation have no effect, of which there is one warning.
    """
    if not isinstance(model, PreTrainedModel) or model.generation_config is None:
        return None
    warn_of_no_effect(model.generation_config, read=(ASKED,))
    asked = model.generation_config.num_assistant_tokens
    return asked if isinstance(asked, int) and asked > 0 else None


def refuse_inputs(arguments: Mapping[str, Any]) -> None:
    """Refuse a cache that comes with the prompt and can be neither read nor filled."""
    for name in CACHE_ARGUMENTS:
        if arguments.get(name) is not None:
            refuse_foreign(name, arguments[name])


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
    """Refuse objects that are known to be no live model, and say what to pass instead."""
    advice = _advice(model)
    if advice:
        raise TypeError(f"{taker} takes a live model, not {advice}")


def _advice(passed: Any) -> str:
    """The name of a thing that was passed instead of a model, and what to write; "" for everything that may be one."""
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
    """True if an object is a `Pipeline` of a module; if it is, the module was imported before."""
    home = sys.modules.get(module)
    return home is not None and isinstance(passed, home.Pipeline)


def refuse_class(model: Any, target: TargetSpec | None) -> None:
    """Refuse a model whose `generate` cannot be replaced; says what to use instead."""
    kind = type(model).__name__
    if "generate" in getattr(model, "__dict__", {}):
        raise ValueError("this model's generate is replaced already, and not by mmspec; put its own back first")
    if target is not None and target.pipeline and "text" not in target.offers:
        raise OutOfScopeError(
            f"a {kind} is run by a {_pipeline(target)}, which speculates as it is, and not by generate: make one of "
            "the model and its other parts, or load one with mmspec.Pipeline.from_pretrained(name)"
        )
    if target is None or unwrapped(model) is not model:  # who looks for a target says so; PEFT hands everything on
        return
    own = getattr(type(model), "generate", None)
    if own is None:
        raise OutOfScopeError(f"a {kind} has no generate that could be replaced; pass the model that generates")
    written, takes = inspect.unwrap(own), inspect.signature(own).parameters.values()
    stock = own is GenerationMixin.generate or not inspect.isfunction(written)
    names = () if stock else written.__code__.co_names
    if "super" not in names and isinstance(model, nn.Module):
        for name, part in model.named_children():
            if name in names and isinstance(part, GenerationMixin):
                reads = any(inner.endswith("crossattention") for inner, _ in part.named_modules())
                advice = (
                    ", which reads an encoder's states beside the text; only decoders can be speculated over"
                    if reads
                    else f": enable that part, mmspec.enable(model.{name}, …), and call generate of the whole as before"
                )
                raise OutOfScopeError(
                    f"generate of a {kind} hands the call on to its part {name}, a {type(part).__name__}{advice}"
                )
    passed = any(each.name == "custom_generate" or each.kind is each.VAR_KEYWORD for each in takes)
    if not stock and not (passed and "generate" in names):  # it calls another's `generate`
        raise OutOfScopeError(
            f"generate of a {kind} is a loop of its own, which calls no generate of transformers; pass the part of it "
            "that has one, if there is one"
        )


def arguments_of(model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call of `generate` by name, in the order that the model's class gives them."""
    own, kind = list(inspect.signature(type(model).generate).parameters.values())[1:], inspect.Parameter
    names = [each.name for each in own if each.kind in (kind.POSITIONAL_ONLY, kind.POSITIONAL_OR_KEYWORD)]
    if any(each.kind is kind.VAR_POSITIONAL for each in own):  # handed on to transformers' own
        names += list(inspect.signature(GenerationMixin.generate).parameters)[1 + len(names) :]
    given = dict(zip(names, args, strict=False))
    if len(args) > len(names) or given.keys() & kwargs.keys():
        twice = "".join(f"; {name} is given twice" for name in given.keys() & kwargs.keys())
        raise TypeError(f"generate of a {type(model).__name__} takes {', '.join(names)} by position{twice}")
    return {**given, **kwargs}


def refuse_mode(model: Any, arguments: Mapping[str, Any]) -> None:
    """Refuse a call that asks for something else than text, as Janus' argument `generation_mode` does."""
    mode = arguments.get("generation_mode")
    if mode in (None, "text"):
        return
    target = installed().target_of([type(model).__name__])
    instead = f"a {_pipeline(target)} of this model drafts there; else" if target and target.pipeline else "for it"
    raise OutOfScopeError(f"generation_mode={mode!r} is a loop of the model's own: {instead} call disable() first")


def _pipeline(target: TargetSpec) -> str:
    return target.pipeline.rpartition(":")[2]
