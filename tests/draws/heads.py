"""Any published head, at any setting of its configuration, drafts as its authors' class, or what is not done is named.

A case is a layout, up to three entries of its config or tensors that are otherwise, and a form of its files. Logits of
a chain are compared with a forward written out after the authors' class, which takes the same entries. An entry that
changes something there and nothing here is a finding; so is a refusal, or a warning, that does not name it; and so is
an entry of any configuration class of transformers that is neither read, nor named, nor known to change nothing.
"""

import random
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from mmspec_text.drafters.heads.mtp.checkpoint import COUNTS
from tests.draws.claim import Broken, Case, Claim, Dice
from tests.draws.head_base import NESTED, Kind
from tests.draws.head_cases import (
    HARMLESS_TENSORS,
    config_of,
    extras,
    keys_of,
    len_layers,
    more_tensors,
    place_of,
    places,
    stored,
    tensors,
    value_at,
)
from tests.draws.head_deep import ENDS, Deep
from tests.draws.head_entries import CHANGING, FEATURES, OF_ALL, PLAIN, READ, REMOTE, TRAINING, is_named, universe
from tests.draws.head_files import DTYPES, FORMS, ONE, rounded, write
from tests.draws.head_kinds import KINDS, Prompted, Rowed
from tests.draws.head_settings import rotary, values, windows
from tests.support.settled_layers import ROTARY, WINDOWS

CLOSE = 1e-5
"""Of the largest logit: what rounding to float32 costs; or thirty times what a change of last places costs there."""
SHAPES: dict[str, Sequence[Any]] = {"layers": (1, 2, 3), "biases": (True,), "embedding": (True,), "whole": (True,)}
"""Other shapes of a layout: layers, biases of queries, keys and values, an embedding of its own, all ids scored."""


class Heads(Claim):
    """See the module."""

    name = "heads"
    share = 1.0
    fixed = 400
    needed = frozenset({"head"})

    def draw(self, dice: Dice) -> Case:
        name = dice.dealt(sorted(KINDS), dice.number)
        kind = KINDS[name]
        case: Case = {"head": name}
        if dice.random() < 0.5:
            case["form"] = dice.choice(FORMS[:2] if isinstance(kind, Deep) else FORMS if kind.stem == "model" else ONE)
            case["dtype"] = "float32" if isinstance(kind, Deep) and kind.chained else dice.choice(DTYPES)
        if isinstance(kind, Rowed) and "kv_lora_rank" not in kind.config and dice.random() < 0.4:
            part = dice.choice(sorted(SHAPES))
            case[f"shape.{part}"] = dice.choice(SHAPES[part])
        for _ in range(dice.choice((1, 1, 2, 3))):
            case |= self._otherwise(kind, int(case.get("shape.layers") or 0), dice)
        return case

    def _otherwise(self, kind: Kind, layers: int, dice: random.Random) -> Case:
        config, way = kind.config, dice.random()
        own = [place for place in places(config) if place.split(".")[0] in NESTED or "." not in place]
        own = [place for place in own if place not in ("architectures", "speculators_model_type")]  # of the layout
        rowed, layered = isinstance(kind, Rowed), "rms_norm_eps" in config or isinstance(kind, Rowed)
        if way < 0.05:
            w, _ = kind.weights({})
            # A projection in front of a deep block may have a bias: nothing says that a file lacks it.
            there = {key for key in w if key not in ENDS and not key.endswith(".bias")}
            key = dice.choice(sorted(there if isinstance(kind, Deep) else w))
            key = "lm_head.weight" if "lm_head.weight" in w and rowed and dice.random() < 0.3 else key
            return {dice.choice(("tensor.lack", "tensor.odd")): key}
        if isinstance(kind, Deep) and way < 0.6:
            return {f"config.{dice.choice(COUNTS)}": dice.choice((None, 0, 1, 2, 3))}
        if isinstance(kind, Prompted):
            place = dice.choice(sorted(config))
            return {f"config.{place}": values(place, config[place], dice)}
        if isinstance(kind, Deep) or way < 0.12:
            return {"tensor.more": dice.choice(more_tensors(kind))}
        found: dict[str, Any] = {}
        if layered and way < 0.32:
            found = rotary(dice, layers or len_layers(kind))
            found = found if rowed else {key: value for key, value in found.items() if key not in WINDOWS}
        elif rowed and way < 0.44:
            found = windows(dice, layers or len_layers(kind))
        elif way < 0.62 and own:
            place = dice.choice(own)
            return {f"config.{place}": values(place.split(".")[-1], value_at(config, place), dice)}
        else:
            known = sorted({*READ, *REMOTE}) if dice.random() < 0.6 else CHANGING
            named = dice.choice(known if dice.random() < 0.75 else list(universe()))
            found = {named: values(named, universe().get(named), dice)}
            if named == "tie_word_embeddings" and rowed and dice.random() < 0.7:
                return {**self._placed(kind, found), "shape.embedding": True, "tensor.lack": "lm_head.weight"}
        return self._placed(kind, found)

    def _placed(self, kind: Kind, found: Mapping[str, Any]) -> Case:
        return {f"config.{place_of(kind.config, key, kind)}": value for key, value in found.items()}

    def files(self, case: Case, folder: Path) -> None:
        """Write the head of a case."""
        kind = KINDS[case["head"]]
        w, config = tensors(case), config_of(case)
        files = {kind.named(key): value for key, value in w.items()} | {key: torch.zeros(2) for key in kind.extra}
        dtype = case.get("dtype", "float32")
        files |= kind.lent | {key: w[of] for key, of in kind.copies.items() if of in w and key not in files}
        files |= extras(case, w)
        write(folder, rounded(files, dtype), config, kind.stem, case.get("form", "one"))

    def ours(self, case: Case) -> tuple[Tensor, str]:
        """The logits that mmspec drafts with, `[step, vocab]`, and what it warns of."""
        with TemporaryDirectory() as folder, warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            self.files(case, Path(folder) / "head")
            found = KINDS[case["head"]].ours(Path(folder) / "head")
        return found, " ".join(str(each.message) for each in said)

    def theirs(self, case: Case, dtype: torch.dtype = torch.float64) -> Tensor:
        """The logits of the reference, `[step, vocab]`."""
        w = {key: value.to(dtype) if value.is_floating_point() else value for key, value in stored(case).items()}
        return KINDS[case["head"]].theirs(w, config_of(case))

    def run(self, case: Case) -> str:
        otherwise = {key for key in case if key not in ("head", "dtype", "form")}
        try:
            ours, said = self.ours(case)
        except (ValueError, TypeError) as error:
            shown = re.search(r"Its keys are ([^,]+), ", str(error))
            if shown and shown[1] not in keys_of(case):
                raise Broken(f"names a key that the file does not have: {error}") from error
            if not any(is_named(key, case, str(error)) for key in otherwise):
                raise Broken(f"refused, and what is otherwise is not named: {error}") from error
            return "refused"
        words = {*re.findall(r"\w+", said)}
        warned = {key for key in otherwise if key.startswith("config.") and key.rpartition(".")[2] in words}
        silent = sorted(key for key in otherwise - warned if not self._known(key, case))
        if silent:
            raise Broken(f"taken, and neither read nor named: {', '.join(silent)}")
        # Of rotary parameters a part is named: which one counts is for the authors' class to say.
        left = {key for key in warned if key.rpartition(".")[2] not in ROTARY}
        theirs_case = {key: value for key, value in case.items() if key not in left}
        try:
            theirs = self.theirs(theirs_case)
        except Exception as error:
            what = f"{type(error).__name__}: {error}"
            raise Broken(f"taken, and its authors' class does not compute it: {what}") from error
        finite = theirs.isfinite()
        if ours.shape != theirs.shape or not torch.equal(finite, ours.isfinite()):
            raise Broken(f"logits are {list(ours.shape)}, and {list(theirs.shape)}; or other ids have none")
        largest = float(theirs[finite].abs().max())
        off = [float((ours - theirs)[i][finite[i]].abs().max()) / largest for i in range(len(theirs))]
        if max(off) > CLOSE and max(off) > 30 * self._rounding(theirs_case, theirs, largest):
            raise Broken(f"off by {', '.join(f'{each:.1e}' for each in off)} of the largest logit, step by step")
        return "warned" if warned else "equal"

    def _rounding(self, case: Case, theirs: Tensor, largest: float) -> float:
        """What a change of the tensors' last place in float32 costs the reference."""
        g = torch.Generator().manual_seed(0)
        w = {}
        for key, value in stored(case).items():
            off = 1 + 6e-8 * torch.randn(value.shape, generator=g) if value.is_floating_point() else 1
            w[key] = value.double() * off if value.is_floating_point() else value
        other = KINDS[case["head"]].theirs(w, config_of(case))
        return float((other - theirs)[theirs.isfinite()].abs().max()) / largest

    def _known(self, key: str, case: Case) -> bool:
        """Whether what is otherwise is known to the reference, or to change nothing."""
        first, _, rest = key.partition(".")
        if first in ("shape", "tensor"):
            return first == "shape" or key == "tensor.lack" or case[key] in HARMLESS_TENSORS
        name = rest.split(".")[-1]
        if name in OF_ALL | TRAINING | FEATURES | READ or case["head"] == "ppd:ppd":
            return True
        return case[key] in (None, PLAIN.get(name)) or case[key] == value_at(KINDS[case["head"]].config, rest)

    def space(self) -> Iterator[str]:
        yield from (f"layout:{name}" for name in KINDS)
        yield from (f"entry:{name}" for name in sorted({*universe(), *READ}))
        yield from (f"dtype:{name}" for name in DTYPES)
        yield from (f"form:{name}" for name in FORMS)
        yield from (f"shape:{name}" for name in SHAPES)

    def parts(self, case: Case) -> Iterator[str]:
        yield f"layout:{case['head']}"
        yield f"dtype:{case.get('dtype', 'float32')}"
        yield f"form:{case.get('form', 'one')}"
        for key in case:
            first, _, rest = key.partition(".")
            if first == "config" and rest.split(".")[-1] in {*universe(), *READ}:
                yield f"entry:{rest.split('.')[-1]}"
            if first == "shape":
                yield f"shape:{rest}"

    def program(self, case: Case) -> str:
        return f"""import torch
from tests.draws.heads import CLAIM, config_of

case = {case!r}
print(config_of(case))  # what config.json says
ours, said = CLAIM.ours(case)  # logits of a chain behind random features, step by step; and warnings
theirs = CLAIM.theirs(case)  # those of the forward written out in tests/support/settled_forward.py
print(said)
for one, other in zip(ours, theirs):
    there = other.isfinite()
    print(float((one - other)[there].abs().max() / other[there].abs().max()))
"""


CLAIM = Heads()
