"""Pictures and films: every exact method gives, for the same seed, the output of `plain`.

Codes are equal, but for near-ties that the unmodified model's margin explains; denoised frames are, up to float32's
rounding. Under a `lossless` method codes are equal at temperature 0, and else have plain's distribution; so have
continuous tokens. A lossy method runs, and is no default. Beside that, each case asks one thing of `ALSO`.
"""

import os
import random
from collections.abc import Iterator
from typing import Any

import torch

import mmspec
from mmspec.compare.equality import assert_same, stock
from tests.draws.claim import Broken, Case, Claim
from tests.draws.option_values import drawn_value, options_of
from tests.draws.picture_calls import MORE, arguments, drawn_call, generation, how, made, methods_of
from tests.draws.picture_checks import ALSO, Drawing, changed, compared, drawing, held, refused_before
from tests.draws.picture_models import KINDS, small_grids

K = (0, 1, 2, 3, 5, 8, 16, 40)


class Pictures(Claim):
    name = "pictures"
    fixed = 40
    needed = frozenset({"model", "method"})

    def draw(self, dice: random.Random) -> Case:
        model = dice.choice([name for name, kind in KINDS.items() for _ in range(1 if kind.shipped else 3)])
        kind, methods = KINDS[model], methods_of(model)
        own = [name for name, each in methods.items() if each.drafter is None or each.drafter.owner != "text"]
        method = dice.choice(own if dice.random() < 0.7 else list(methods))
        case: Case = {"model": model, "method": method}
        for setting, values in kind.settings.items():
            if dice.random() < 0.4:
                case[f"config.{setting}"] = dice.choice(values)
        if dice.random() < 0.8 and len(methods) > 1:
            case["k"] = dice.choice(K)
        if dice.random() < (0.15 if kind.units == "codes" else 0.02) and len(methods) > 1:
            case["shape"] = dice.choice(["one", "any"])
        if dice.random() < 0.15 and len(methods) > 1:
            case["policy"] = dice.choice(["confidence", "goodput", "payoff"])
        if dice.random() < 0.05:
            case["dtype"] = "bfloat16"
        declared = {} if method == "auto" else options_of(methods[method])  # auto's drafter is another's
        for option, hint in declared.items():
            if dice.random() < 0.4 and (value := drawn_value(hint, dice)) is not None:
                case[f"option.{option}"] = value
        case |= drawn_call(model, dice)
        if dice.random() < 0.6 and kind.units != "ids":
            case["also"] = dice.choice([name for name, check in ALSO.items() if kind.units in check.units])
            case |= {"call.temperature": 0.0} if case["also"] == "whole" else {}
        return case

    def run(self, case: Case) -> str:
        with small_grids(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return self._generate(case) if KINDS[case["model"]].units == "ids" else self._run(case)

    def _generate(self, case: Case) -> str:
        """By a model without a pipeline: ids and torch's generator are those of unmodified transformers."""
        pipe = KINDS[case["model"]].make()
        prompt, call = generation(case)
        try:
            expected = stock(pipe.model, prompt, case.get("call.seed", 0), **call)
        except Exception:
            return "stock fails"
        try:
            with mmspec.enable(pipe.model, case["method"], **how(case, pipe)):
                torch.manual_seed(case.get("call.seed", 0))
                ids = pipe.model.generate(**prompt, **call)
        except (ValueError, TypeError) as error:
            return refusal(error)
        exactness = methods_of(case["model"])[case["method"]].exactness
        if exactness == "invariant" and case["method"] != "ambedkar":
            return "rounding" if assert_same(ids, expected, torch.get_rng_state()) else "equal"
        return exactness

    def _run(self, case: Case) -> str:
        try:
            pipe = made(case)
            pairing = methods_of(case["model"])[case["method"]]
            pipe.use(case["method"], **how(case, pipe))
        except (ValueError, TypeError) as error:
            return refusal(error)
        call, before = arguments(case, pipe), held(pipe)
        state = torch.get_rng_state()
        try:
            ours = drawing(pipe, call)
        except (ValueError, TypeError) as error:
            refused_before(pipe, call)
            self._same_refusal(case, pipe, error)
            return refusal(error)
        if seeded(call) and not torch.equal(state, torch.get_rng_state()):
            raise Broken("a call with a seed moved torch's own generator")
        if pairing.exactness == "lossy" and ours.report.exactness == "invariant" and ours.report.accepted:
            raise Broken("a lossy method reports that it is exact")
        said = self._against_plain(case, pipe, pairing.exactness, ours)
        if held(pipe) != before:
            raise Broken(f"it left the pipeline changed: {changed(before, held(pipe))}")
        if "also" in case:
            said = ALSO[case["also"]].run(case, pipe, ours) or said
        return said

    def _against_plain(self, case: Case, pipe: Any, exactness: str, ours: Drawing) -> str:
        call = arguments(case, pipe)
        shape = max(ours.report.sizes, default=None) if case.get("dtype") else None
        plain = drawing(other(pipe, "plain", shape=shape), call)
        greedy = KINDS[case["model"]].units != "tokens" and case.get("call.temperature") == 0
        if ours.report.wrt:  # the distribution that it is exact for is another
            return "another target"
        if exactness == "invariant" or (exactness == "lossless" and greedy):
            return compared(plain, ours, exact=bool(case.get("dtype")))
        if plain.units.shape != ours.units.shape:
            raise Broken(f"it has the shape {list(ours.units.shape)}, plain's has {list(plain.units.shape)}")
        return exactness

    def _same_refusal(self, case: Case, pipe: Any, error: Exception) -> None:
        try:
            drawing(other(pipe, "plain"), arguments(case, pipe))
        except (ValueError, TypeError):
            return
        if case["method"] in ("gs-sjd", "gs-sjd-pac", "frame-gs-sjd", "branch-prediction", "reflection"):
            raise Broken(f"plain takes the call, and {case['method']} says: {error}")

    def space(self) -> Iterator[str]:
        for model, kind in KINDS.items():
            yield f"model:{model}"
            yield from (f"setting:{model} {setting}" for setting in kind.settings)
            yield from (f"method:{model} {method}" for method in methods_of(model))
            yield from (
                f"option:{method} {option}" for method, each in methods_of(model).items() for option in options_of(each)
            )
        yield from (f"also:{name}" for name in ALSO)
        yield from (f"argument:{name}" for name in (*MORE, "k", "shape", "policy", "dtype"))

    def parts(self, case: Case) -> Iterator[str]:
        model, method = case["model"], case["method"]
        yield from (f"model:{model}", f"method:{model} {method}")
        for key, name in ((key.partition(".")[0], key.partition(".")[2]) for key in case):
            if key == "config":
                yield f"setting:{model} {name}"
            elif key == "option":
                yield f"option:{method} {name}"
            elif key == "call" and name in MORE:
                yield f"argument:{name}"
            elif key in ("k", "shape", "policy", "dtype"):
                yield f"argument:{key}"
            elif key == "also":
                yield f"also:{case['also']}"

    def program(self, case: Case) -> str:
        settings = {key[7:]: value for key, value in case.items() if key.startswith("config.")}
        options = {key[7:]: value for key, value in case.items() if key.startswith("option.")}
        options |= {key: case[key] for key in ("k", "shape", "policy") if key in case}
        lines = [
            "import torch",
            "from tests.draws.picture_calls import arguments, how",
            "from tests.draws.picture_models import KINDS, small_grids",
            "from tests.draws.pictures import CLAIM",
            f"case = {case!r}",
            "with small_grids():",
            f"    pipe = KINDS[{case['model']!r}].make(**{settings!r})",
            f"    ours = pipe.use({case['method']!r}, **how(case, pipe))  # {options!r}",
            "    ours = ours(**arguments(case, pipe))",
            "    plain = pipe.use('plain')(**arguments(case, pipe))",
            "units = 'frames' if 'frames' in ours else 'codes' if 'codes' in ours else 'tokens'",
            "print(torch.equal(getattr(ours, units), getattr(plain, units)))",
            "print(CLAIM.run(case))" if "also" in case else "",
        ]
        return "\n".join(line for line in lines if line)


def other(pipe: Any, method: str, **how: Any) -> Any:
    """The same pipeline, by another method."""
    return pipe.use(method, **how)


def seeded(call: dict[str, Any]) -> bool:
    return call.get("seed") is not None or call.get("generator") is not None


def refusal(error: Exception) -> str:
    """`refused`, if the words are such that a user can read them.

    Raises:
        Broken: They are no words.
    """
    said = str(error)
    if len(said) < 12 or not said.isprintable() or "object at 0x" in said:
        raise Broken(f"it is refused without words: {type(error).__name__}: {said!r}")
    if os.environ.get("SAY"):
        print("refused:", said[:300], flush=True)
    return "refused"


CLAIM = Pictures()
