"""`mmspec.enable(model, method)`: the model's own `generate`, faster, with the same output for the same seed.

In place and reversible: one instance attribute is set on `enable` and deleted on `disable`; the model's weights, class
and configuration are never touched. A second `enable` takes the first one's place, unless that is in use. Models that
keep their own loop (diffusers pipelines): `mmspec.api.adapters`.
"""

import copy
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Self

import torch

from mmspec.api import adapters
from mmspec.api.adapters import EnabledComponents, Settings, loops_of
from mmspec.api.build import built, models_of
from mmspec.api.generation import noise_of, runner
from mmspec.api.plan import Plan, resolve
from mmspec.api.refusals import (
    arguments_of,
    refuse_arguments,
    refuse_class,
    refuse_inputs,
    refuse_mode,
    refuse_non_models,
    refuse_settings,
)
from mmspec.api.stopping import with_stop_strings
from mmspec.core.capabilities import Learns
from mmspec.core.compile.captured import Compile
from mmspec.core.decoder import Decoder
from mmspec.core.learning import Learner, Learning
from mmspec.core.promise import HALF, Shape, in_half_precision
from mmspec.core.report import Report
from mmspec.core.rules.rule import draws_by_position
from mmspec.files import save_sealed
from mmspec.hosts.linear import forget
from mmspec.registry import DrafterSpec, installed
from mmspec.registry.warn import warn


def learning_of(learn: Any, plan: Plan, compile: Compile) -> Learning | None:
    """The options behind `learn=`; None: no learning. Refuses a drafter that cannot learn, before weights are read."""
    if learn is None or learn is False:
        return None
    if learn is not True and not isinstance(learn, Learning):
        raise TypeError(f"learn= is True, False or mmspec.Learning(…), not {type(learn).__name__}")
    if compile:
        raise ValueError(
            "learn= and compile= do not go together: captured rounds may hold copies of a drafter's weights, which a "
            "lesson would not reach; leave out one of them"
        )
    spec, able, name = plan.pairing.drafter, False, "plain"
    if plan.drafter is not None:
        able, name = isinstance(plan.drafter, Learns), type(plan.drafter).__name__
    elif spec is not None:
        able, name = _can_learn(spec), spec.name
    if not able:
        raise _unable(name)
    return Learning() if learn is True else learn


def learner_of(decoder: Decoder, learning: Learning | None) -> Learner | None:
    """The learner of a decoder; None without learning; refuses a drafter that cannot learn, and weights that belong to
    inference mode.
    """
    if learning is None:
        return None
    if not isinstance(decoder.drafter, Learns):
        raise _unable(decoder.name)
    if learning.idle and not draws_by_position(decoder.rule):
        raise ValueError(
            f"under the rule of {decoder.name} ({decoder.rule.exactness}) a text depends on the drafter, and with "
            "Learning(idle=True) on when lessons run; leave out idle, or take the rule match"
        )
    learner = Learner(decoder.drafter, learning)
    weights = learner.lesson.weights()
    if torch.is_inference_mode_enabled() or any(weight.is_inference() for weight in weights):
        raise ValueError("weights that were made under torch.inference_mode() cannot learn; load and enable outside it")
    return learner


def _unable(name: str) -> ValueError:
    names = ", ".join(sorted(spec.name for spec in installed().components("drafter") if _can_learn(spec)))
    return ValueError(f"the drafter {name} cannot learn; those that can: {names or 'none'}")


def _can_learn(spec: DrafterSpec) -> bool:
    factory = spec.load()
    return isinstance(factory, type) and issubclass(factory, Learns)


class Enabled:
    """A model whose `generate` speculates; leave it with `disable()` or as a context manager."""

    def __init__(
        self, model: Any, decoder: Decoder, seed: int | None, noise: str | None, learner: Learner | None = None
    ) -> None:
        self._model = model
        self._decoder = decoder
        self._seed = seed
        self._noise = noise
        self.learner = learner  # what the drafter learnt: `steps`, `seconds`, `loss`, `stopped`
        self.method = decoder.name
        self.why = decoder.why  # the reason for this method, in one sentence
        self.report: Report | None = None  # counts and times of the last call
        self.totals: Report | None = None  # those of all calls together
        self.held: list[str] = []  # why another `enable` of the model may not take the handle's place now

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """The model's `generate` while enabled: arguments and result as transformers documents them."""
        arguments = arguments_of(self._model, args, kwargs)
        refuse_mode(self._model, arguments)
        refuse_arguments(arguments)
        refuse_settings(arguments)
        refuse_inputs(arguments)
        streamer = arguments.pop("streamer", None)
        arguments = self._with_stop_criterion(arguments)
        how: dict[str, Any] = {"noise": self._noise, "seed": self._seed, "streamer": streamer, "learner": self.learner}
        run = runner(lambda model: self._decoder, self._set_report, **how)
        self.held.append(adapters.RUNNING)
        try:
            with nullcontext() if self.learner is None else self.learner.call():
                result = type(self._model).generate(self._model, **{**arguments, "custom_generate": run})
            if self.learner is not None:
                self.learner.learn()
        finally:
            self.held.remove(adapters.RUNNING)
        return result

    def save_drafter(self, folder: str | Path) -> None:
        """Write the drafter as it is after what it learnt; `drafter=folder` takes it; refuses a folder that holds
        something else.
        """
        if self.learner is None:
            raise ValueError("the drafter is as it was loaded: nothing learns here (learn=True)")
        Path(folder).parent.mkdir(parents=True, exist_ok=True)
        with self.learner.call():
            save_sealed(Path(folder), self.learner.lesson.save)

    @property
    def width(self) -> int | None:
        """Nodes of every pass after the prefill; None: any number.

        Under one shape and `match` the output equals to the bit what `enable(model, "plain", shape=width)` gives, but
        for trees in half precision on a GPU: a call's report says which (`report.shape`).
        """
        return self._decoder.one_width()

    def __repr__(self) -> str:
        kind, k = type(self._model).__name__, self._decoder.k
        on = "" if self._model.__dict__.get("generate") == self.generate else ", disabled"
        why = f" ({self.why})" if self.why else ""
        return f"<mmspec {self.method} on {kind}, k={k}{on}{why}>"

    def disable(self) -> None:
        """Give the model its own `generate` back, and free the memory that was taken for speed."""
        if self._model.__dict__.get("generate") == self.generate:
            del self._model.__dict__["generate"]
        if self.learner is not None:
            self.learner.rest(lessons=False)
        self._decoder.captures.free_recorded()
        for model in models_of(self._decoder):
            forget(model.parameters())

    def _with_stop_criterion(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The arguments with stop strings, in whichever of three places, turned into a criterion: transformers makes
        one itself, but with a tokenizer that it does not pass to a custom function.
        """
        tokenizer, config = arguments.pop("tokenizer", None), arguments.get("generation_config")
        places = (config, self._model.generation_config)
        strings = [place.stop_strings for place in places if place is not None and place.stop_strings is not None]
        wanted = arguments.pop("stop_strings") if "stop_strings" in arguments else next(iter(strings), None)
        arguments["stopping_criteria"] = with_stop_strings(arguments.get("stopping_criteria"), wanted, tokenizer)
        if config is not None and config.stop_strings is not None:
            arguments["generation_config"] = config = copy.deepcopy(config)
            config.stop_strings = None
        if self._model.generation_config.stop_strings is not None:
            arguments["stop_strings"] = None  # an argument takes precedence over the model's own configuration
        return arguments

    def _set_report(self, report: Report) -> None:
        self.report = report
        self.totals = report if self.totals is None else Report.total([self.totals, report])

    def __enter__(self) -> Self:
        self.held.append(adapters.BLOCK)
        return self

    def __exit__(self, *raised: object) -> None:
        self.held.remove(adapters.BLOCK)
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
    shape: Shape = None,
    compile: Compile = None,
    learn: bool | Learning = False,
    components: Mapping[str, Settings] | None = None,
    **options: Any,
) -> Any:
    """Let a live transformers model speculate in `generate`, or a live diffusers pipeline in its call.

    Of a pipeline, every component that can generate is enabled, such as the language model that rewrites prompts,
    except where an adapter fits the pipeline itself (`speculative-denoising`), which `auto` prefers. What is enabled
    already is disabled first, so that a notebook's cell can be run again.

    Args:
        model: The model, or the pipeline.
        method: A method of `mmspec methods`, or `auto`, which says in `why` what it chose.
        drafter: A drafter's name, a smaller model (live, or its name), or an object with `propose`.
        rule: A rule's name or object; default: the method's, which is `match`.
        k: Units to draft per round (`num_speculative_tokens`).
        policy: `fixed`, `confidence`, `goodput`, `payoff`, or an object (see `mmspec.core.policies`).
        seed: Seed of philox noise; default: torch's generator decides, as without mmspec. Under `match` the seed alone
            determines the output. Under a lossless rule the lengths of the drafts do, too, which the policy `goodput`
            chooses by measured times (`report.repeatable`).
        noise: `torch`, the default under `match`: the output equals the unmodified model's for the same
            `torch.manual_seed`; or `philox`. Drafters and policies may draw from torch's generator without effect. A
            stopping criterion or a streamer that does so ends the drafts of its call, whose output is the unmodified
            model's if it draws at every token from the first on (a streamer: not for the prompt), and else a sample of
            the same distribution.
        shape: Nodes of the passes after the prefill: `any`, as many as are drafted; `one`, one number for the whole
            call; or that number. Under one shape and `match` the output equals plain decoding of this width,
            `enable(model, "plain", shape=N)`, to the bit, in half precision too; `report` names N. Default: `one` on
            CUDA, else `any`, of which a warning says in half precision what it promises. The page "Shapes" says which
            models keep the promise.
        compile: Default: on CUDA rounds are recorded as they are and replayed as one graph, where that is possible;
            else there is a warning that says why. True: torch compiles them as well, on every device; `auto`: where
            that is faster here, measured in the first call of a shape; False: neither. Such rounds have one shape;
            under `match` a text equals the `plain` of its width to the bit, and rounds that were compiled otherwise
            up to near-ties. The first call of a shape records for about a second, or compiles for seconds to minutes.
            The model keeps what was compiled; what was recorded is freed with the handle.
        learn: Whether a drafter with a network (`eagle`, `draft-model`, `draft-tree`) learns between calls from what it
            drafted wrongly (online speculative decoding); `mmspec.Learning(…)` says how. A lesson runs when a call is
            over, before `generate` returns; the target never changes, and under `match` no output does. The drafter's
            weights change in place, a live draft model's, too; `save_drafter(folder)` writes them. Not with
            `compile=True`.
        components: For pipelines: arguments of single components by name, such as `{"text_encoder": {"k": 4}}`, which
            take precedence over the others. A component that is named and cannot be enabled is an error.
        **options: Options of drafter, rule and policy. Two more say that a language model writes pictures: `vq=` and
            `codes=` (the page "A picture model of your own").

    Returns:
        A handle: context manager, `report`, `method`, `why`, `disable()`. For components of a pipeline: `components`
        (a handle for each), `reports`, `skipped` (the others, with the reason) and `disable()`.

    Raises:
        ValueError: No plugin has a target for the model, a name, option or combination is wrong, or the model is
            enabled already and that is in use: by an open `with` block, a running call, or a pipeline.
        TypeError: The object is no live model; says what to pass.

    Example:
        ```python
        with mmspec.enable(model, "prompt-lookup") as spec:
            out = model.generate(**inputs, max_new_tokens=256, do_sample=True)
        print(spec.report)
        ```
    """
    refuse_non_models(model)
    others = {"drafter": drafter, "rule": rule, "policy": policy, "seed": seed, "noise": noise}
    others |= {"shape": shape, "compile": compile, "learn": learn or None}
    fitting, by_parts = loops_of(model, method, components)
    adapters.make_way(model, _handle_of(model))
    skipped = {}
    if fitting:
        try:
            return adapters.enabled(model, fitting, method, k, others, options)
        except ValueError as error:
            if not by_parts:
                raise
            skipped = {fitting[0].name: str(error)}
    if by_parts:
        common = {"method": method, "k": k, **others, "learn": learn, **options}
        return EnabledComponents(model, enable, common, components or {}, skipped)
    refuse_class(model, installed().target_for(model))
    parts = {"drafter": drafter, "rule": rule, "k": k, "policy": policy, "shape": shape, "compile": compile}
    plan = resolve(model, method, **parts, options=options, beside=("seed", "noise", "learn"))
    learning = learning_of(learn, plan, compile)
    decoder = built(plan, model)
    enabled = Enabled(model, decoder, seed, noise_of(decoder, noise, seed), learner_of(decoder, learning))
    if shape is None and decoder.k and decoder.rule.exactness == "invariant" and in_half_precision(decoder.target):
        more = ", and shape='one' makes it plain decoding's of one width, to the bit" if enabled.width is None else ""
        warn(f"{HALF}; a call's report says what its output equals{more}")
    model.__dict__["generate"] = enabled.generate
    return enabled


def disable(model: Any) -> None:
    """Undo `enable`; does nothing to a model that is not enabled."""
    handle = _handle_of(model)
    if handle is not None:
        handle.disable()


def _handle_of(model: Any) -> Any:
    own = getattr(model, "__dict__", {})
    owner = getattr(own.get("generate"), "__self__", None)
    return owner if isinstance(owner, Enabled) else own.get(adapters.HANDLE)
