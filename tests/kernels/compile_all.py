"""Compiles every launch of the kernels to machine code of an H100, on a machine without a GPU; run as a script.

Triton's own launcher is replaced: it takes the types of the arguments as the runtime would (an integer that is 1 is a
constant), compiles, and launches nothing.
"""

import sys
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime import JITFunction

from mmspec.core.distributions import Categorical
from mmspec.core.kernels import block, commit, coupling, layers, race, random, siblings
from mmspec.core.noise import Substream
from mmspec.core.tree import TreeIndex
from mmspec.core.types import Draft
from mmspec.hosts.tree_op import Branches
from mmspec_ssm.ops import tree_scan
from mmspec_ssm.ops.roll import NodeInputs

TARGET = GPUTarget("cuda", 90, 32)
NAMES = {
    torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16", torch.float64: "fp64", torch.int64: "i64",
    torch.bool: "i1",
}  # fmt: skip
compiled = set[tuple[str, str]]()


def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, num_warps: int = 4, **kwargs: Any) -> None:
    signature, constants = {}, {}
    given = dict(zip([p.name for p in self.params], args, strict=False)) | kwargs
    for parameter in self.params:
        name, value = parameter.name, given[parameter.name]
        if isinstance(value, Tensor):
            signature[name] = "*" + NAMES[value.dtype]
        elif parameter.is_constexpr or value == 1:
            signature[name], constants[name] = "constexpr", value
        else:
            signature[name] = "fp32" if isinstance(value, float) else "i32"
    key = self.fn.__name__, f"{signature}{constants}"
    if key not in compiled:
        made = triton.compile(ASTSource(self, signature, constants), TARGET, {"num_warps": num_warps})
        assert made.asm["cubin"]
        compiled.add(key)


def launch_all(rows: int, index: TreeIndex, vocab: int, dtype: torch.dtype) -> None:
    """Every kernel once, over tensors whose numbers do not matter."""
    nodes = index.nodes
    key, emitted = torch.zeros(rows, 2, dtype=torch.int64), torch.zeros(rows, dtype=torch.int64)
    units, valid = torch.zeros(rows, nodes, dtype=torch.int64), torch.ones(rows, nodes, dtype=torch.bool)
    random.numbers(key, units, emitted[:, None], Substream.UNIT, vocab, True)
    random.numbers(key, units[:1], emitted[:, None], units, 1, False)
    random.exponentials_at(units[..., None], key, units, emitted[:, None], Substream.UNIT)
    winners = race.race(torch.zeros(rows, nodes, vocab, dtype=dtype), key, emitted, index.depth)
    draft = Draft(units, index, valid)
    race.walk(draft, winners)
    path = torch.zeros(rows, max(1, index.deepest), dtype=torch.int64)
    commit.move_accepted([torch.zeros(rows, 8, 64, 128, dtype=dtype)], emitted, path, emitted, {})
    states, weight = torch.zeros(rows, nodes, 96, dtype=dtype), torch.zeros(96, dtype=dtype)
    layers.normalised(states, weight, 1e-6)
    layers.normalised(states, weight, 1e-6, states, states)
    layers.normalised(states.unflatten(-1, (6, 16))[:, :, 1:3], weight[:16], 1e-6)
    layers.gated(states, states[..., :48].contiguous())
    q, k, turn = (torch.zeros(rows, *size, 64, dtype=dtype) for size in ((4, nodes), (2, nodes), (nodes,)))
    layers.rotated(q, k, turn, turn)
    for groups, heads, width, size in ((1, 3, 10, 6), (2, 24, 64, 128)):
        x, b = (torch.zeros(rows, nodes, *sides) for sides in ((heads, width), (groups, size)))
        fed = NodeInputs(torch.zeros(rows, nodes, heads, dtype=torch.float64), x, b)
        tree_scan.scan(Branches(index), torch.zeros(rows, heads, width, size), fed, b)
    if nodes > 1:
        p, q = torch.zeros(rows, nodes, vocab), torch.zeros(rows, nodes - 1, vocab)
        coupling.couple(p, q, key, emitted, draft.drafted, valid[:, 1:])
        siblings.try_siblings(Draft(units, index, valid, Categorical(q)), p, q, key, emitted)
        residuals = block.Residuals(p, q, key, emitted)
        residuals.masses(q[..., 0])
        residuals.draw(p[:, 0, 0], emitted, valid[:, 0])


def main() -> None:
    JITFunction.run = compile_only
    launch_all(1, TreeIndex.chain(1), 5, torch.float32)
    launch_all(2, TreeIndex.chain(2), 32_000, torch.float16)
    launch_all(2, TreeIndex.static([-1, *(node // 3 for node in range(63))]), 128_256, torch.bfloat16)
    sys.stdout.write("\n".join(sorted({name for name, _ in compiled})))


if __name__ == "__main__":
    main()
