"""Does this very model verify trees? On first use, against unmodified passes over whole paths and its own `generate`.

A wrong mask, a distance measured in slots (ALiBi), a position taken from the cache's length, a grid of positions: all
are silent, and all show here; of recurrent layers a commit is looked at too. The tolerance is relative to the model's
own noise between a one-token and an N-token pass; above it the model is refused, with the number. That a model is sound
is remembered for as long as it lives and stays what it is (`mmspec.hosts.fingerprint`); that it failed is not: memory
may have run out, a weight may be mended.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationMixin

from mmspec.core.memory import out_of_memory
from mmspec.core.tree import TreeIndex
from mmspec.hosts.anatomy import Anatomy
from mmspec.hosts.attention import model_lock
from mmspec.hosts.dispatch import called_functions
from mmspec.hosts.fingerprint import ResultsByModel, arithmetic, rounding
from mmspec.hosts.passes import MANNERS, Manner, Passes, names_argument
from mmspec.hosts.prefill import PLAIN
from mmspec.hosts.reference_paths import ReferencePaths
from mmspec.hosts.slot_cache import SlotCache
from mmspec.hosts.stock_generate import StockGenerate, position_jump

STEPS = 3
"""Of the model's own `generate` that are compared."""

SLACK = 16.0
"""Times the model's own noise that a tree may differ."""

CEILING = 1e-3
"""Of the largest logit: more is no rounding, whatever the model's noise seems to be."""


@dataclass(frozen=True)
class Finding:
    """What the check saw.

    Attributes:
        manner: How to run the model; None where it is refused.
        error: Largest difference of logits, of the manner that came closest.
        tolerance: What would have been allowed.
        trouble: What is wrong, where it is not that difference.
    """

    manner: Manner | None
    error: float = 0.0
    tolerance: float = 0.0
    trouble: str = ""


_sound: ResultsByModel[Finding] = ResultsByModel()
_alike: ResultsByModel[bool] = ResultsByModel()
"""Kinds of prompts after which the model's own steps and ours were the same."""


def checked(anatomy: Anatomy, whole: nn.Module | None = None) -> Passes:
    """How to run this model, found out once.

    Args:
        anatomy: The model.
        whole: The live model that this one is a passing view of; None: it is no view.

    Raises:
        ValueError: No way gives the logits of whole paths; the message has the numbers.
    """
    model = anatomy.model
    with model_lock(model):
        notes = _sound.of(model if whole is None else whole)
        key = (type(model), arithmetic(model), tuple((name, type(op)) for name, op in anatomy.ops.items()))
        finding = notes.get(key) or examine(anatomy)
        if finding.manner is not None:
            notes[key] = finding
            return Passes(anatomy, finding.manner)
    slots = "alibi" in model.config.to_json_string(use_diff=False) or model.config.model_type in ("bloom", "mpt")
    hint = "; it measures distance by cache slot (ALiBi), which a tree breaks" if slots else _undeclared(anatomy)
    saw = finding.trouble or (
        f"logits of tree nodes differ by {finding.error:.1e} from those of whole paths, where rounding explains "
        f"{finding.tolerance:.1e}"
    )
    raise ValueError(f"{type(model).__name__} cannot verify drafts exactly, so it is refused: {saw}{hint}")


@torch.no_grad()
def examine(anatomy: Anatomy) -> Finding:
    """Compare; see the module."""
    with _untouched(anatomy.model):
        try:
            paths = ReferencePaths(anatomy)
            noise, scale = paths.noise(), float(paths.chains[0].abs().max())
            strange, off = _own_steps(anatomy, paths)
        except Exception as error:
            return Finding(None, trouble=f"its unmodified pass failed ({_told(error)})")
        if not bool(paths.chains[0].isfinite().all()):
            return Finding(None, trouble="its own logits are NaN or infinite; check the weights and the dtype")
        eps = rounding(anatomy.model)
        tolerance, most = SLACK * max(noise, eps * scale), max(CEILING, SLACK * eps) * scale
        if noise > most:
            return Finding(None, noise, most, f"over its cache, its own logits are off by {noise:.1e}")
        tolerance = min(tolerance, most)
        if strange or off > tolerance:
            return Finding(None, off, tolerance, strange or f"in its own generate, its logits are off by {off:.1e}")
        worst, trouble = float("inf"), ""
        for manner in MANNERS:
            try:
                distance = paths.distance(Passes(anatomy, manner))
            except Exception as error:
                trouble = trouble or f"its tree pass failed ({_told(error)})"
                continue
            if distance <= tolerance:
                return Finding(manner, distance, tolerance)
            worst = min(worst, distance)
    return Finding(None, worst, tolerance, "" if worst < float("inf") else trouble)


def compare_calls(passes: Passes, cache: SlotCache, loop: StockGenerate, inputs: Mapping[str, Any]) -> None:
    """After the first prompt of its kind, compare the model's own next steps with ours, which commit nothing.

    What a prompt holds beside ids may come back in every step (a mask of pictures that are seen from all layers): then
    positions are right, and the logits are not.

    Args:
        passes: Ours.
        cache: Ours, filled.
        loop: The model's own call behind the same prompt.
        inputs: Of the call.

    Raises:
        ValueError: The logits of every step differ in some row.
    """
    model = passes.anatomy.model
    none = (value is None or (isinstance(value, Mapping) and not value) for value in inputs.values())
    given = frozenset(name for name, nothing in zip(inputs, none, strict=True) if not nothing)
    notes, kind = _alike.of(model), (given, bool(loop.mask.all()), passes.manner, arithmetic(model))
    if kind in notes:
        return
    theirs, units = [], [loop.logits.argmax(-1)]
    fork = loop.fork()
    for _ in range(STEPS):
        fork.step(units[-1])
        theirs.append(fork.logits)
        units.append(fork.logits.argmax(-1))
    logits = torch.stack(theirs, 1)
    ours = passes(cache, torch.stack(units[:-1], 1), TreeIndex.chain(STEPS, logits.device))
    apart = (ours.float() - logits.float()).abs().amax(-1).amin(1)  # a router that flips does so in one step
    most = max(CEILING, SLACK * rounding(model)) * float(logits.abs().max())
    if float(apart.max()) > most:
        prompt = ", ".join(sorted(given - PLAIN)) or "such a mask"
        raise ValueError(
            f"{type(model).__name__} cannot verify drafts exactly in this call, so it is refused: behind a prompt with "
            f"{prompt}, its own next steps differ from ours by {float(apart.max()):.1e}, where rounding explains "
            f"{most:.1e}; disable() first"
        )
    if bool(apart.isfinite().all()):
        notes[kind] = True


def _own_steps(anatomy: Anatomy, paths: ReferencePaths) -> tuple[str, float]:
    """The model's own `generate` over the chain: what is strange about its positions, and how far logits are off."""
    model = anatomy.model
    if not isinstance(model, GenerationMixin):
        return "", 0.0
    strange = _on_a_grid(anatomy, paths)
    if strange:
        return strange, 0.0
    loop, logits, places = StockGenerate(anatomy, paths.ids[None], {}), [], []
    for unit in paths.drafted[:STEPS]:
        loop.step(unit[None])
        logits.append(loop.logits[0].float())
        places += [] if loop.positions is None else [loop.positions]
    off = float((torch.stack(logits) - paths.chains[0][:STEPS]).abs().max())
    if not places:
        return "", off
    positions = torch.cat(places, -1)
    if bool((positions[..., 0] != len(paths.ids)).any()):
        return f"its own generate puts token {len(paths.ids)} at position {positions[..., 0].flatten().tolist()}", off
    return position_jump(positions), off


def _on_a_grid(anatomy: Anatomy, paths: ReferencePaths) -> str:
    """What is strange about positions of pictures to come, where the model's forward makes positions by itself."""
    if not names_argument(anatomy.model, "image_grid_thw"):
        return ""
    grid = torch.tensor([[1, 2, 2]], device=paths.ids.device)
    try:
        loop = StockGenerate(anatomy, paths.ids[None], {"image_grid_thw": grid})
        positions = loop.ahead()
    except Exception as error:  # it reads pictures, and none came with the grid
        _told(error)
        return ""
    return position_jump(positions) if positions is not None and loop.counts else ""


def _told(error: Exception) -> str:
    """An error in a line; that there is no memory left says nothing about a model, and goes on its way."""
    if out_of_memory(error):
        raise error
    return f"{type(error).__name__}: {error}"


def _undeclared(anatomy: Anatomy) -> str:
    """Where recurrent layers are wrong: what no plugin says of them."""
    if not anatomy.ops:
        return ""
    known, others = called_functions(anatomy.model, anatomy.ops)
    return (
        f"; of the functions that its recurrent layers call, plugins declare {', '.join(known)} over a tree "
        f"(mmspec_tree_ops), and not {', '.join(others) or 'any other'}"
    )


def _moved(before: Any, now: Any) -> bool:
    """Whether a buffer is on another device since: offloading brings a model's parts there together."""
    return isinstance(before, Tensor) and isinstance(now, Tensor) and before.device != now.device


@contextmanager
def _untouched(model: nn.Module) -> Iterator[None]:
    """Dropout off; afterwards every module has the attributes and buffers that it had.

    Some remember their last prompt (positions of its pictures), or the frequencies of the longest text so far.
    """
    held: list[dict[str, Any]] = [own for module in model.modules() for own in (vars(module), module._buffers)]
    before = [dict(own) for own in held]
    for module in model.modules():
        module.training = False
    try:
        yield
    finally:
        for own, was in zip(held, before, strict=True):
            for name in own.keys() - was.keys():
                del own[name]
            own.update({name: value for name, value in was.items() if not _moved(value, own.get(name))})
