"""The self-check: on first use, tree passes of a model are compared with unmodified passes over whole paths.

A wrong mask, a distance measured in slots (ALiBi), a position taken from the cache's length, a grid of positions: none
of these raises an error, and all of them change logits, which this check sees. It also compares with the model's own
`generate`, and checks a commit of recurrent layers. Stand-ins take the places of quantised layers, whose rounding could
not be told from such a fault (`mmspec.hosts.quantised_layers`). The tolerance is relative to the model's own difference
between a one-token and an N-token pass; above it the model is refused, with the number. A success is remembered as long
as the model lives and does not change (`mmspec.hosts.fingerprint`); a failure is not, because memory may have run out
or a weight may be repaired.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationMixin

from mmspec.core.out_of_memory import out_of_memory
from mmspec.core.tree import TreeIndex
from mmspec.hosts.attention import model_lock
from mmspec.hosts.devices import autocast_dtype, device_of
from mmspec.hosts.dispatch import called_functions
from mmspec.hosts.fingerprint import ResultsByModel, arithmetic, rounding
from mmspec.hosts.model_info import ModelInfo, lengths, names_argument
from mmspec.hosts.passes import MANNERS, Manner, Passes
from mmspec.hosts.prefill import PLAIN
from mmspec.hosts.quantised_layers import NONE, QuantisedLayers
from mmspec.hosts.reference_paths import LONGEST, ReferencePaths
from mmspec.hosts.slot_cache import SlotCache
from mmspec.hosts.slot_layer import windows
from mmspec.hosts.stock_generate import StockGenerate, position_jump

STEPS = 3  # the number of steps of the model's own `generate` that are compared

SLACK = 16.0  # a tree's logits may differ by so many times the model's own noise

STEADY = 4.0
"""The same with stand-ins, which amplify no rounding, below float32: in bfloat16, right trees of SmolLM2 were 1.4 times
its relative error apart, and wrong ones at least 8."""

CEILING = 1e-3  # the largest difference that can be rounding, as a share of the largest logit

APART = 4.0
"""Passes of other shapes may differ by so many times the model's own noise, also above `CEILING`. Where 64 layers of
Mamba-2 amplify every rounding, right trees were 1.2 to 2.6 times the noise apart, and wrong ones at least 8.9 times."""

DRAWS = 4
"""Random drafts that a model with experts may try. Rounding makes a router choose another expert now and then, which no
tolerance covers; a wrong mask or position is wrong in every draft."""


@dataclass(frozen=True)
class Finding:
    manner: Manner | None  # how to run the model; None if it is refused
    error: float = 0.0  # the largest difference of logits, for the manner with the smallest one
    tolerance: float = 0.0  # the largest difference that is allowed
    trouble: str = ""  # the reason of the refusal if it is not `error`; else ""
    rings: bool = False  # whether layers with a window may keep a ring
    quantised: QuantisedLayers = NONE  # layers in whose places there were stand-ins
    rows: int | None = None  # the rows for which its hooks are made; None: any number


_sound: ResultsByModel[Finding] = ResultsByModel()
_checked_calls: ResultsByModel[bool] = ResultsByModel()
"""The kinds of prompts after which the model's own steps and ours agreed."""


def checked(model_info: ModelInfo, whole: nn.Module | None = None, rows: int | None = None) -> Passes:
    """The passes of a model, in the manner that the check found.

    `whole` is the live model whose weights this one shares, if this one is built for a single call. Results are kept
    for the live model. A model that is refused is checked again over `rows`, those of the call: hooks may be made for
    them, such as peft's for an adapter a row. Refuses where no manner gives the logits of whole paths.
    """
    model = model_info.model
    if device_of(model).type == "meta":
        raise ValueError(
            f"the weights of {type(model).__name__} are on the device 'meta', where there are no numbers: load them, "
            "or dispatch the model with accelerate"
        )
    with model_lock(model):
        results = _sound.of(model if whole is None else whole)
        key = (type(model), arithmetic(model), tuple((name, type(op)) for name, op in model_info.ops.items()))
        finding = results.get(key) or results.get((key, rows)) or examine(model_info)
        if finding.manner is None and rows is not None:
            own = examine(model_info, rows)
            finding = finding if own.manner is None else replace(own, rows=rows)
        if finding.manner is not None:
            results[key if finding.rows is None else (key, rows)] = finding
            before = model_info.latest.get("passes")  # which know the parts of the model: those of most calls are equal
            if before is None or before[0] is not results or before[1:3] != (key, finding):
                passes = Passes(model_info, finding.manner, finding.rings, finding.quantised, finding.rows)
                before = model_info.latest["passes"] = (results, key, finding, passes)
            found: Passes = before[3]
            return found
    slots = "alibi" in model.config.to_json_string(use_diff=False) or model.config.model_type in ("bloom", "mpt")
    hint = (
        "; it measures distance by cache slot (ALiBi), which a tree breaks" if slots else _beside(model_info, finding)
    )
    if autocast_dtype(model) is not None:
        hint += "; autocast is on, under which passes of different shapes may round very differently: cast the model"
    if finding.quantised.names:
        hint += f"; stand-ins took the places of its {len(finding.quantised.names)} quantised layers"
    trouble = (
        "its tree pass failed"
        if slots and finding.trouble
        else finding.trouble
        or (
            f"logits of tree nodes differ by {finding.error:.1e} from whole paths' logits, where rounding explains "
            f"{finding.tolerance:.1e}"
        )
    )
    raise ValueError(f"{type(model).__name__} cannot verify drafts exactly, so it is refused: {trouble}{hint}")


@torch.no_grad()
def examine(model_info: ModelInfo, rows: int | None = None) -> Finding:
    """Run the comparison, over so many rows if any are named, whatever is remembered of the model."""
    model = model_info.model
    with unchanged(model) as replaced, (quantised := QuantisedLayers.of(model)).replaced(model):
        coarse = rounding(model) > torch.finfo(torch.float32).eps
        slack = STEADY if quantised.names and coarse else SLACK
        first = finding = _compare(model_info, 0, slack, rows)
        for draw in range(1, DRAWS if model_info.has_experts else 1):
            if finding.manner is not None:
                break
            finding = _compare(model_info, draw, slack, rows)
    if replaced:
        return Finding(
            None, trouble=f"a short text replaces its {replaced[0]}, which changes what it makes of long ones"
        )
    return replace(finding if finding.manner is not None else first, quantised=quantised)


def _compare(model_info: ModelInfo, draw: int, slack: float, rows: int | None) -> Finding:
    try:
        paths = ReferencePaths(model_info, draw, rows)
        noise, scale = paths.noise(), float(paths.chains[0].abs().max())
        wrong_position, off, unseen = _own_steps(model_info, paths)
    except Exception as error:
        return Finding(None, trouble=f"its unmodified pass failed ({in_a_line(error)})")
    if not bool(paths.chains[0].isfinite().all()):
        return Finding(None, trouble="its own logits are NaN or infinite; check the weights and the dtype")
    eps = rounding(model_info.model)
    tolerance, most = slack * max(noise, eps * scale), most_rounding(model_info.model, scale)
    if noise > most:
        return Finding(None, noise, most, f"over its cache, its own logits are off by {noise:.1e}{_explained(most)}")
    tolerance = max(min(tolerance, most), APART * noise)
    if wrong_position or off > tolerance:
        trouble = (
            wrong_position or f"in its own generate, its logits are off by {off:.1e}{_explained(tolerance)}{unseen}"
        )
        return Finding(None, off, tolerance, trouble)
    found, worst, trouble = None, float("inf"), ""
    for manner in MANNERS:
        try:
            distance = paths.distance(Passes(model_info, manner))
        except Exception as error:
            trouble = trouble or f"its tree pass failed ({in_a_line(error)})"
            continue
        worst = min(worst, distance)
        # In half precision a mask that is read in another way may stay within the tolerance: the other manner is right.
        if distance <= tolerance and (found is None or APART * distance < found.error):
            found = Finding(manner, distance, tolerance, rings=paths.allow_rings(manner, tolerance))
        if found is not None and found.error <= APART * max(noise, eps * scale):
            break
    return found or Finding(None, worst, tolerance, "" if worst < float("inf") else trouble)


def most_rounding(model: Any, scale: float) -> float:
    """The largest difference that can be rounding between logits of at most `scale`."""
    return max(CEILING, SLACK * rounding(model)) * scale


def compare_calls(passes: Passes, cache: SlotCache, stock: StockGenerate, inputs: Mapping[str, Any]) -> None:
    """After the first prompt of a kind, compare the model's own next steps with our passes, which commit nothing.

    A model may read an input beside the ids in every step (a mask of images that all layers see): then positions agree
    and logits do not. The cache is filled; `stock` is the model's own call behind the same prompt. Refuses where the
    logits of every step differ in some row.
    """
    model = passes.model_info.model
    none = (value is None or (isinstance(value, Mapping) and not value) for value in inputs.values())
    given = frozenset(name for name, nothing in zip(inputs, none, strict=True) if not nothing)
    results, kind = _checked_calls.of(model), (given, bool(stock.mask.all()), passes.manner, arithmetic(model))
    if kind in results:
        return
    steps, units = [], [stock.logits.argmax(-1)]
    fork = stock.fork()
    with passes.quantised.replaced(model):
        for _ in range(STEPS):
            fork.step(units[-1])
            steps.append(fork.logits)
            units.append(fork.logits.argmax(-1))
        logits = torch.stack(steps, 1)
        ours = passes(cache, torch.stack(units[:-1], 1), TreeIndex.chain(STEPS, logits.device))
    apart = (ours.float() - logits.float()).abs().amax(-1).amin(1)  # a router of experts may flip in one step
    most = most_rounding(model, float(logits.abs().max()))
    if float(apart.max()) > most:
        prompt = ", ".join(sorted(given - PLAIN)) or "such a mask"
        raise ValueError(
            f"{type(model).__name__} cannot verify drafts exactly in this call, so it is refused: behind a prompt with "
            f"{prompt}, its own next steps differ from ours by {float(apart.max()):.1e}, where rounding explains "
            f"{most:.1e}; disable() first"
        )
    if bool(apart.isfinite().all()):
        results[kind] = True


def _explained(most: float) -> str:
    return f" from those of a whole pass, where rounding explains {most:.1e}"


def _own_steps(model_info: ModelInfo, paths: ReferencePaths) -> tuple[str, float, str]:
    """The model's own `generate` over the chain: what is wrong with its positions ("": nothing), the largest difference
    of its logits, and what may explain it.
    """
    model = model_info.model
    if not isinstance(model, GenerationMixin):
        return "", 0.0, ""
    wrong_position = _on_a_grid(model_info, paths)
    if wrong_position:
        return wrong_position, 0.0, ""
    stock, logits, places = paths.stock(paths.backwards(len(paths.ids))), [], []
    for unit in paths.drafted[:STEPS]:
        stock.step(unit.expand(len(stock.ids)))
        logits.append(stock.logits.float())
        places += [] if stock.positions is None else [stock.positions]
    off = float((torch.stack(logits, 1) - paths.chains[0][:, :STEPS]).abs().max())
    if not places:
        hidden = stock.counts and names_argument(model, "position_ids")
        return "", off, ", since it gives the model no positions, which the model counts in a way of its own" * hidden
    positions = torch.cat(places, -1)
    if bool((positions[..., 0] != len(paths.ids) + paths.shifts[0]).any()):
        there = positions[..., 0].flatten().tolist()
        return f"its own generate puts token {len(paths.ids)} at position {there}", off, ""
    return position_jump(positions), off, ""


def _on_a_grid(model_info: ModelInfo, paths: ReferencePaths) -> str:
    """The fault of positions behind an image grid, if the model's forward computes positions itself; or ""."""
    if model_info.placed or not names_argument(model_info.model, "image_grid_thw"):
        return ""
    grid = torch.tensor([[1, 2, 2]], device=paths.ids.device)
    try:
        stock = paths.stock({"image_grid_thw": grid})
        positions = stock.ahead()
    except Exception as error:  # a model that reads images fails, because none came with the grid
        in_a_line(error)
        return ""
    return position_jump(positions) if positions is not None and stock.counts else ""


def in_a_line(error: Exception) -> str:
    """An error in one line; out-of-memory errors are raised again, because they say nothing about the model."""
    if out_of_memory(error):
        raise error
    return f"{type(error).__name__}: {error}"


def _beside(model_info: ModelInfo, finding: Finding) -> str:
    """A hint for a model whose trees are wrong: a window of its own, or functions without a declared tree operation."""
    if finding.trouble and not finding.trouble.startswith("its tree pass failed"):
        return ""  # the model's own passes are the reason
    if not model_info.ops:
        masked = windows(model_info.layers())
        own = [f"{name}={size}" for size, name in lengths(model_info).items() if size <= LONGEST and size not in masked]
        return f"; it may count slots, and not positions, for {' and '.join(own)} of its config" if own else ""
    declared, undeclared = called_functions(model_info.model, model_info.ops)
    return (
        f"; of the functions that its recurrent layers call, plugins declare {', '.join(declared)} over a tree "
        f"(mmspec_tree_ops), and not {', '.join(undeclared) or 'any other'}"
    )


@contextmanager
def unchanged(model: nn.Module) -> Iterator[list[str]]:
    """Inside the block, modules are in evaluation mode; afterwards they have their attributes, buffers and parts back.

    Some modules store positions of the last prompt's images, or the frequencies of the longest text so far. The names
    of parts that others took the places of (BigBird's attention) are in the list afterwards.
    """
    parts, replaced = dict(model.named_modules()), list[str]()
    attributes: list[Any] = [
        own for module in parts.values() for own in (vars(module), module._buffers, module._modules)
    ]
    before = [dict(own) for own in attributes]
    for module in parts.values():
        module.training = False
    try:
        yield replaced
    finally:
        now = dict(model.named_modules())
        replaced += [name for name, part in parts.items() if now.get(name) is not part]
        for own, was in zip(attributes, before, strict=True):
            for name in own.keys() - was.keys():
                del own[name]
            own.update({name: value for name, value in was.items() if not _moved(value, own.get(name))})


def _moved(before: Any, now: Any) -> bool:
    """True if a buffer is on another device now, because offloading moved the model."""
    return isinstance(before, Tensor) and isinstance(now, Tensor) and before.device != now.device
