"""`model.generate(..., custom_generate=mmspec.custom_generate("prompt-lookup"))`: one call, nothing left behind."""

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor

from mmspec.api.build import decoder_for
from mmspec.api.generation import runner
from mmspec.api.refusals import UNCALLED
from mmspec.api.stopping import with_stop_strings
from mmspec.core.compile.captured import Compile
from mmspec.core.decoder import Decoder
from mmspec.core.promise import Shape
from mmspec.core.report import Report

BESIDE = ("seed", "noise", "streamer", "tokenizer")
"""Arguments of `custom_generate` that `Pipeline.use` does not have; for suggestions in error messages."""


def custom_generate(
    method: str = "auto",
    *uncalled: Any,
    drafter: Any = None,
    rule: Any = None,
    k: int | None = None,
    policy: Any = None,
    seed: int | None = None,
    noise: str | None = None,
    shape: Shape = None,
    compile: Compile = None,
    streamer: Any = None,
    tokenizer: Any = None,
    **options: Any,
) -> "CustomGenerate":
    """A decoding function for one call of transformers' `generate`; arguments as in `mmspec.enable`, and two more.

    transformers does not pass its `streamer=`, `tokenizer=`, `assistant_model=` and `synced_gpus=` on to custom
    functions, without a warning. Give the first two here; the others have no effect.

    The tokenizer is for `generate(stop_strings=…)`. Stop strings must be an argument of `generate`: transformers
    refuses them in a generation configuration before this function is called. With `assistant_tokenizer=`, the
    tokenizer is also the drafter's option `tokenizer`. `uncalled` stays empty: transformers fills it where this
    function itself was passed as `custom_generate=`, which is an error.

    Returns:
        The function to pass as `custom_generate=`; its `report` is the latest call's.

    Raises:
        TypeError: This function was passed to `generate` instead of what it returns.

    Example:
        ```python
        lookup = mmspec.custom_generate("prompt-lookup", tokenizer=tokenizer)
        model.generate(**inputs, custom_generate=lookup, stop_strings="END")
        print(lookup.report)
        ```
    """
    if uncalled or not isinstance(method, str):
        raise TypeError(UNCALLED)
    if tokenizer is not None and "assistant_tokenizer" in options:
        options["tokenizer"] = tokenizer

    parts = {"drafter": drafter, "rule": rule, "k": k, "policy": policy, "shape": shape, "compile": compile}

    def decoder_of(model: Any) -> Decoder:
        return decoder_for(model, method, **parts, options=options, beside=BESIDE)

    return CustomGenerate(partial(runner, decoder_of, noise=noise, seed=seed, streamer=streamer), tokenizer)


class CustomGenerate:
    """A decoding function for transformers' `generate`, as `custom_generate` makes it."""

    def __init__(self, make: Callable[[Callable[[Report], None]], Callable[..., Any]], tokenizer: Any) -> None:
        self.report: Report | None = None  # of the latest call; None before the first
        self._run, self._tokenizer = make(self._keep), tokenizer

    # transformers passes on arguments that this signature names and its own sampling does not: here stop_strings. It
    # would else look for the tokenizer, which it has dropped.
    def __call__(
        self,
        model: Any,
        input_ids: Tensor,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: Any,
        stop_strings: str | list[str] | None = None,
        **extra: Any,
    ) -> Any:
        """Decode a call, for transformers' `generate`."""
        criteria = with_stop_strings(stopping_criteria, stop_strings, self._tokenizer)
        return self._run(model, input_ids, logits_processor, criteria, generation_config, **extra)

    def _keep(self, report: Report) -> None:
        self.report = report
