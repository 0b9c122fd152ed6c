"""The promise of a call: the width of its passes, what its output equals, and whether a seed repeats it.

In half precision a pass over one node and a pass over nine round differently, so that texts part at near-ties. Where
every pass after the prefill has one width and the same rows, from the first round to the last, what a node's scores are
does not depend on what the other nodes hold, nor on how many of them are right: the output equals plain decoding's at
that width, to the bit. Rounds without a draft, the last rounds of a text and rows that ended are padded too. A
drafter's own passes may have any shape. Trees keep that in half precision on a CPU alone: elsewhere such a call is
lossless, and names no width.
"""

from typing import Literal

import torch
from torch import nn

from mmspec.core.capabilities import Advising, Bounded, OneShape, RunsModel, Widening
from mmspec.core.manifest import SYNTHETIC
from mmspec.core.policies import Clocked, Policy
from mmspec.core.protocols import Drafter, Target
from mmspec.core.report import Promise
from mmspec.core.rules.rule import Rule
from mmspec.core.types import Prefill
from mmspec.registry import fitting, installed, missing_words
from mmspec.registry.numbers import whole
from mmspec.registry.suggest import unknown
from mmspec.registry.warn import warn

Shape = Literal["any", "one"] | int | None
"""Nodes of a call's passes: `any` number, `one` number, that number itself, or None (what suits the target)."""
NAMES = ("any", "one")
HALF = (
    "half precision: equality with transformers' generate is promised in float32 only, since passes of another width "
    "round differently"
)


def promised(
    target: Target,
    drafter: Drafter,
    rule: Rule,
    policy: Policy,
    *,
    nodes: int | None,
    lone: bool,
    compile: object,
    prefill: Prefill,
    rows: int,
) -> Promise:
    """The promise of a call whose prefill is done.

    `nodes` is the number of nodes of every pass, None for any; under `lone`, passes without a draft have one; `rows`
    are those of a pass; `compile` is as in `Decoder`.
    """
    exact, clocked = rule.exactness == "invariant", isinstance(policy, Clocked)
    width = None if lone and nodes != 1 else _plain_width(target, nodes)
    shown = exact and width is not None and _shows_trees(target, drafter)
    kept = prefill.keeps_shape and (prefill.keeps_trees or "tree" not in drafter.offers)
    width = width if kept and not shown else None
    rounded, parts = bool(prefill.rounding) and width is None, exact and _differs_from_itself(target, rows, nodes)
    exactness = "lossless" if exact and (shown or rounded) else rule.exactness
    # Where drafts change what is drawn, their lengths must not follow the clock.
    repeatable = not parts and (exactness == "invariant" or not clocked)
    if parts:
        exactness, width = "lossless", None
    free = width is None or exactness != "invariant"
    timed = "draft lengths follow the clock" if free and clocked else ""
    if compile == "auto":
        timed = "whether rounds are compiled is measured"
    return Promise(exactness, width, repeatable, timed, rounded)


def refuse_misfits(target: Target, drafter: Drafter, rule: Rule) -> None:
    """Refuse three live objects before anything runs: drafts are verified exactly or not at all."""
    missing = missing_words(target.offers, drafter, rule)
    if missing:
        raise ValueError(
            f"{type(drafter).__name__} with {type(rule).__name__} on {type(target).__name__} cannot be verified: "
            f"nothing offers {_listed(missing)} "
            f"(target: {_listed(target.offers)}; drafter: {_listed(drafter.offers)}; rule: {_listed(rule.offers)})"
            f"{drafter.advice if isinstance(drafter, Advising) else ''}. "
            f"Methods that fit the target: {', '.join(fitting(installed(), target.offers)) or 'none'}"
        )


def _listed(words: frozenset[str]) -> str:
    return ", ".join(sorted(words)) or "nothing"


def checked_shape(shape: Shape) -> Shape:
    """The shape, if there is such a shape."""
    if isinstance(shape, str) and shape not in NAMES:
        raise ValueError(unknown("shape", shape, NAMES) + ", or a number of nodes")
    if shape is None or isinstance(shape, str):
        return shape
    if whole("shape", shape) < 1:
        raise ValueError("shape counts the nodes of a pass, the root included: at least 1")
    return int(shape)


def longest_draft(target: Target, k: int, limit: int | None = None) -> int:
    """Most units per path of a draft of budget `k`: none is longer than the context, or than a call's limit allows."""
    context = target.context if isinstance(target, Bounded) else None
    bounds = (k, context, None if limit is None else limit - 1)
    return min(bound for bound in bounds if bound is not None)


def shape_to_compile(shape: Shape, target: Target) -> Shape:
    """The shape of calls whose rounds are to be compiled; `any`, with a warning, if they cannot have one shape."""
    if shape == "any":
        raise ValueError("compiled rounds have one shape: use shape='one' or a number of nodes, or leave compile out")
    if shape is not None:
        return shape
    if isinstance(target, OneShape):
        return "one"
    warn(f"rounds are not compiled: {type(target).__name__} cannot run all passes with one number of nodes")
    return "any"


def one_width(shape: Shape, target: Target, drafter: Drafter, rule: Rule, k: int, compiled: bool) -> int | None:
    """Nodes of every pass, root and padding included; None if passes may have any number of nodes.

    The shape is as in `Decoder`, and the drafter is bound. Rounds that are to be `compiled` need one shape, whatever
    the rule promises.
    """
    exact = rule.exactness == "invariant"
    if shape == "any" or (shape is None and not (exact and isinstance(target, OneShape) and target.prefers_one_shape)):
        return None
    if not isinstance(target, OneShape):
        raise ValueError(f"{type(target).__name__} cannot run all passes with one number of nodes; use shape='any'")
    promises = rule.exactness != SYNTHETIC.exactness  # a benchmark's rule has no promise that could break
    if promises and not (exact or compiled):
        raise ValueError(
            f"shape={shape!r} promises plain decoding's output, and under {type(rule).__name__} the output depends on "
            "the drafts; use the rule 'match', or shape='any'"
        )
    nodes = drafter.width(longest_draft(target, k)) + 1
    if not isinstance(shape, int):
        return nodes
    if nodes > shape:
        raise ValueError(
            f"drafts of k={k} have {nodes} nodes, the root included, and shape={shape} has room for {shape}; "
            f"use shape={nodes}, or a smaller k"
        )
    return shape


def _plain_width(target: Target, nodes: int | None) -> int | None:
    """The width of plain decoding that a call equals whose drafts have room for `nodes` nodes; None: any number."""
    return target.pass_nodes(nodes) if nodes is not None and isinstance(target, Widening) else nodes


def _shows_trees(target: Target, drafter: Drafter) -> bool:
    """True if the rounding of later passes shows which units came in a tree: measured on CUDA, in half precision.

    A commit moves the keys of a tree's units to other slots, which changes the order of sums; on a CPU these are
    float64. The keys of a chain stay where they are.
    """
    return "tree" in drafter.offers and in_half_precision(target, on_cpu=False)


def _differs_from_itself(target: Target, rows: int, width: int | None) -> bool:
    """True if equal calls may part: measured on CUDA, in half precision, in passes of one node over two rows.

    Why is not known; a plain loop of torch's own calls does the same there. Passes of more nodes repeat themselves.
    Under guidance a pass has two rows for every row of the call; without a width no such promise is made.
    """
    return width == 1 and rows > 1 and in_half_precision(target, on_cpu=False)


def in_half_precision(target: Target, on_cpu: bool = True) -> bool:
    """True if a target has weights in half precision; those on a CPU count if they may be `on_cpu`."""
    model = target.model if isinstance(target, RunsModel) else None
    weights = model.parameters() if isinstance(model, nn.Module) else ()  # a target's model may be a table
    half = (torch.float16, torch.bfloat16)
    return any(weight.dtype in half and (on_cpu or weight.device.type != "cpu") for weight in weights)
