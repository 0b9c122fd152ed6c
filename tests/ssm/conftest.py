"""Every tree operation beside its definition: one node at a time, one state at a time, in float64."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from mmspec.hosts.tree_op import TreeOp
from mmspec_ssm.ops.conv import Convolution
from mmspec_ssm.ops.delta import GatedDelta
from mmspec_ssm.ops.linear import GatedLinear
from mmspec_ssm.ops.selective import SelectiveScan
from mmspec_ssm.ops.ssd import Ssd

OPS = ["convolution", "ssd", "selective scan", "gated delta", "channel-wise gated delta", "gated linear attention"]
ROWS, HEADS, KEY, VALUE, CHANNELS, SIZE, WIDTH = 3, 4, 5, 6, 7, 3, 4


@dataclass(frozen=True)
class Case:
    """An operation, its inputs and its definition."""

    op: TreeOp  # the tree operation
    state: tuple[int, ...]  # shape of a row's state
    inputs: Callable[[int], dict[str, Tensor]]  # number of nodes → arguments that have a node axis, `[batch, node, …]`
    fixed: Mapping[str, Any]  # arguments that have none
    # (state of one row, one node's arguments, fixed) → what the node says, its state
    step: Callable[[Tensor, dict[str, Tensor], Mapping[str, Any]], tuple[Tensor, Tensor]]
    # names of arguments that the operation takes as `[batch, …, node]`; its output is like that, too
    node_last: bool = False

    def over_tree(self, branches: Any, state: Tensor | None, inputs: dict[str, Tensor]) -> tuple[Tensor, Any]:
        """The operation: what every node says, `[batch, node, …]`, and its stash."""
        given = {name: x.movedim(1, -1) if self.node_last else x for name, x in inputs.items()}
        out, stash = self.op.forward(branches, state, **given, **self.fixed)
        out = out[0] if isinstance(out, tuple) else out
        return (out.movedim(-1, 1) if self.node_last else out), stash

    def along(self, state: Tensor, inputs: dict[str, Tensor], row: int, path: list[int]) -> tuple[Tensor, Tensor]:
        """The definition along one path: what its last node says, and the state behind it."""
        said = torch.empty(0)
        for node in path:
            said, state = self.step(state, {name: x[row, node].double() for name, x in inputs.items()}, self.fixed)
        return said, state


def _normal(nodes: int, *shape: int) -> Tensor:
    return torch.randn(ROWS, nodes, *shape)


def _decay(nodes: int, *shape: int) -> Tensor:
    """Log-decays, strong ones among them: e^(-L) of a path would overflow."""
    return -F.softplus(4 * _normal(nodes, *shape)) * 8


def _unit(x: Tensor) -> Tensor:
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)


def _conv(state: Tensor, x: dict[str, Tensor], fixed: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    state = torch.cat([state[:, 1:], x["hidden_states"][:, None]], 1)
    return F.silu((state * fixed["weight"].double()).sum(1) + fixed["bias"].double()), state


def _ssd(state: Tensor, x: dict[str, Tensor], fixed: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    dt = F.softplus(x["dt"] + fixed["dt_bias"].double()).clamp(*fixed["dt_limit"])
    b, c = (x[name].repeat_interleave(HEADS // 2, 0) for name in "BC")
    decay = (dt * fixed["A"].double()).exp()[:, None, None]
    state = decay * state + (dt[:, None] * x["hidden_states"])[:, :, None] * b[:, None]
    return (state * c[:, None]).sum(-1) + fixed["D"].double()[:, None] * x["hidden_states"], state


def _selective(state: Tensor, x: dict[str, Tensor], fixed: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    dt = F.softplus(x["dt"] + fixed["delta_bias"].double())
    u = x["hidden_states"]
    state = (dt[:, None] * fixed["A"].double()).exp() * state + (dt * u)[:, None] * x["B"]
    return ((state * x["C"]).sum(-1) + u * fixed["D"].double()) * F.silu(x["z"]), state


def _delta(state: Tensor, x: dict[str, Tensor], fixed: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    heads = x["value"].shape[0]
    q, k = (_unit(x[name]).repeat_interleave(heads // x[name].shape[0], 0) for name in ("query", "key"))
    g = x["g"].exp()
    state = (g[:, None, None] if g.dim() == 1 else g[:, :, None]) * state
    missing = x["value"] - (state * k[:, :, None]).sum(1)
    state = state + k[:, :, None] * (x["beta"][:, None] * missing)[:, None]
    return (state * q[:, :, None]).sum(1) * KEY**-0.5, state


def _linear(state: Tensor, x: dict[str, Tensor], fixed: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    state = x["g"].exp()[:, :, None] * state + x["k"][:, :, None] * x["v"][:, None]
    return (state * x["q"][:, :, None]).sum(1) * KEY**-0.5, state


def _folded(nodes: int, heads: int, *decay: int) -> dict[str, Tensor]:
    return {
        "query": _normal(nodes, heads, KEY),
        "key": _normal(nodes, heads, KEY),
        "value": _normal(nodes, HEADS, VALUE),
        "g": _decay(nodes, HEADS, *decay),
        "beta": _normal(nodes, HEADS).sigmoid(),
    }


def cases() -> dict[str, Case]:
    """All operations, with arguments of the current seed."""
    return {
        "convolution": Case(
            Convolution(),
            (CHANNELS, WIDTH),
            lambda n: {"hidden_states": _normal(n, CHANNELS)},
            {"weight": torch.randn(CHANNELS, WIDTH), "bias": torch.randn(CHANNELS), "activation": "silu"},
            _conv,
            node_last=True,
        ),
        "ssd": Case(
            Ssd(),
            (HEADS, VALUE, SIZE),
            lambda n: {
                "hidden_states": _normal(n, HEADS, VALUE),
                "dt": 3 * _normal(n, HEADS),
                "B": _normal(n, 2, SIZE),
                "C": _normal(n, 2, SIZE),
            },
            {
                "A": -8 * torch.rand(HEADS),
                "D": torch.randn(HEADS),
                "dt_bias": torch.randn(HEADS),
                "dt_softplus": True,
                "dt_limit": (0.01, 4.0),
            },
            _ssd,
        ),
        "selective scan": Case(
            SelectiveScan(),
            (CHANNELS, SIZE),
            lambda n: {
                **{name: _normal(n, CHANNELS) for name in ("hidden_states", "dt", "z")},
                **{name: _normal(n, SIZE) for name in "BC"},
            },
            {
                "A": -4 * torch.rand(CHANNELS, SIZE),
                "D": torch.randn(CHANNELS),
                "delta_bias": torch.randn(CHANNELS),
                "delta_softplus": True,
            },
            _selective,
            node_last=True,
        ),
        "gated delta": Case(
            GatedDelta(), (HEADS, KEY, VALUE), lambda n: _folded(n, 2), {"use_qk_l2norm_in_kernel": True}, _delta
        ),
        "channel-wise gated delta": Case(
            GatedDelta(),
            (HEADS, KEY, VALUE),
            lambda n: _folded(n, HEADS, KEY),
            {"use_qk_l2norm_in_kernel": True},
            _delta,
        ),
        "gated linear attention": Case(
            GatedLinear(),
            (HEADS, KEY, VALUE),
            lambda n: {
                "q": _normal(n, HEADS, KEY),
                "k": _normal(n, HEADS, KEY),
                "v": _normal(n, HEADS, VALUE),
                "g": _decay(n, HEADS, KEY),
            },
            {},
            _linear,
        ),
    }


@pytest.fixture(params=OPS)
def case(request: pytest.FixtureRequest) -> Case:
    """Every operation in turn."""
    torch.manual_seed(0)
    found = cases()
    assert list(found) == OPS
    return found[request.param]
