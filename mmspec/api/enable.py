"""`mmspec.enable(model, method)`: the model's own `generate`, faster, with the same output for the same seed.

In place and reversible: one instance attribute is set on `enable` and deleted on `disable`; the model's weights, class
and configuration are never touched. Models that keep their own loop (diffusers pipelines): `mmspec.api.adapters`.
"""

import copy
import inspect
from types import TracebackType
from typing import Any, Self

from transformers import GenerationMixin

from mmspec.api import adapters
from mmspec.api.build import decoder_for, models_of
from mmspec.api.generation import noise_of, runner
from mmspec.api.mistakes import refuse_strangers
from mmspec.api.refusals import refuse_arguments, refuse_inputs, refuse_settings
from mmspec.api.stopping import with_stop_strings
from mmspec.core.decoder import Decoder
from mmspec.core.report import Report
from mmspec.hosts.linear import forget
from mmspec.registry import installed

_NAMES = list(inspect.signature(GenerationMixin.generate).parameters)[1:]
"""Of positional arguments."""


class Enabled:
    """A model whose `generate` speculates; leave it with `disable()` or as a context manager.

    Attributes:
        method: The method that was chosen.
        why: In one sentence, why this one.
        report: Counts and times of the last call; None before the first.
    """

    def __init__(self, model: Any, decoder: Decoder, seed: int | None, noise: str | None) -> None:
        self._model = model
        self._decoder = decoder
        self._seed = seed
        self._noise = noise
        self.method = decoder.name
        self.why = decoder.why
        self.report: Report | None = None

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """What `model.generate` is while enabled: arguments and result as transformers documents them.

        Raises:
            ValueError: An argument that speculation cannot honour.
        """
        given = {**dict(zip(_NAMES, args, strict=False)), **kwargs}
        refuse_arguments(given)
        refuse_settings(given)
        refuse_inputs(given)
        streamer = given.pop("streamer", None)
        given = self._with_stop_strings(given)
        run = runner(lambda model: self._decoder, self._keep, noise=self._noise, seed=self._seed, streamer=streamer)
        return type(self._model).generate(self._model, **{**given, "custom_generate": run})

    def __repr__(self) -> str:
        kind, k = type(self._model).__name__, self._decoder.k
        on = "" if self._model.__dict__.get("generate") == self.generate else ", disabled"
        why = f" ({self.why})" if self.why else ""
        return f"<mmspec {self.method} on {kind}, k={k}{on}{why}>"

    def disable(self) -> None:
        """Give the model its own `generate` back, and the memory that was taken for speed."""
        if self._model.__dict__.get("generate") == self.generate:
            del self._model.__dict__["generate"]
        for model in models_of(self._decoder):
            forget(model.parameters())

    def _with_stop_strings(self, given: dict[str, Any]) -> dict[str, Any]:
        """The arguments with stop strings as a criterion, wherever they stood.

        transformers makes one itself, but with a tokenizer that it does not find where a custom function decodes.
        """
        tokenizer, config = given.pop("tokenizer", None), given.get("generation_config")
        places = (config, self._model.generation_config)
        strings = [there.stop_strings for there in places if there is not None and there.stop_strings is not None]
        wanted = given.pop("stop_strings") if "stop_strings" in given else next(iter(strings), None)
        given["stopping_criteria"] = with_stop_strings(given.get("stopping_criteria"), wanted, tokenizer)
        if config is not None and config.stop_strings is not None:
            given["generation_config"] = config = copy.deepcopy(config)
            config.stop_strings = None
        if self._model.generation_config.stop_strings is not None:
            given["stop_strings"] = None  # an argument wins over the model's own configuration
        return given

    def _keep(self, report: Report) -> None:
        self.report = report

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.disable()


def enable(
    model: Any,
    /,
    method: str = "auto",
    *,
    drafter: Any = None,
    rule: Any = None,
    k: int | None = None,
    policy: Any = None,
    seed: int | None = None,
    noise: str | None = None,
    **options: Any,
) -> Enabled:
    """Let a live transformers model speculate in `generate`, or a live diffusers pipeline in its call.

    Args:
        model: The model, or the pipeline.
        method: A method of `mmspec methods`, or `auto`, which says in `why` what it chose.
        drafter: A drafter's name, a smaller model (live, or its name), or an object with `propose`.
        rule: A rule's name or object; default: the method's, which is `match`.
        k: Units to draft per round (`num_speculative_tokens`).
        policy: `fixed`, `confidence`, `goodput`, or an object (see `mmspec.core.policies`).
        seed: Of philox noise; default: torch's generator decides, as without mmspec. Under `match` it says what is
            written. Under a lossless rule what is written depends on the drafts too, so that the same seed gives the
            same text only where these have the same lengths: not with the policy `goodput`, which follows the clock
            (`report.repeatable` says so).
        noise: `torch` (the default under `match`: the output equals the unmodified model's for the same
            `torch.manual_seed`) or `philox`. Drafters and policies may draw from torch's generator without effect. A
            stopping criterion or a streamer that does ends the drafts of its call: the output is the unmodified
            model's where it draws at every token, from the first on (a streamer not for the prompt); else it is a
            sample of the same distribution.
        **options: Options of drafter, rule and policy.

    Returns:
        A handle: context manager, `report`, `method`, `why`, `disable()`.

    Raises:
        ValueError: The model has no target, or a name, option or combination is wrong.
        TypeError: It is no live model; says what to call.

    Example:
        ```python
        with mmspec.enable(model, "prompt-lookup") as spec:
            out = model.generate(**inputs, max_new_tokens=256, do_sample=True)
        print(spec.report)
        ```
    """
    refuse_strangers(model)
    fitting = installed().adapters_for(model)
    if fitting:
        others = {"drafter": drafter, "rule": rule, "policy": policy, "seed": seed, "noise": noise}
        handle: Enabled = adapters.enabled(model, fitting, method, k, others, options)
        return handle
    if "generate" in getattr(model, "__dict__", {}):
        raise ValueError("this model's generate is already replaced; call disable() first")
    parts = {"drafter": drafter, "rule": rule, "k": k, "policy": policy}
    decoder = decoder_for(model, method, **parts, options=options, beside=("seed", "noise"))
    enabled = Enabled(model, decoder, seed, noise_of(decoder, noise, seed))
    model.__dict__["generate"] = enabled.generate
    return enabled


def disable(model: Any) -> None:
    """Undo `enable`; does nothing to a model that is not enabled."""
    own = getattr(model, "__dict__", {})
    owner = getattr(own.get("generate"), "__self__", None)
    if isinstance(owner, Enabled):
        owner.disable()
    if adapters.HANDLE in own:
        own[adapters.HANDLE].disable()
