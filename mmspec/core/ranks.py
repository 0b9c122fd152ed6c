"""Tensor parallel: every rank runs the loop with a shard of the target, and the first rank's drafts are verified.

The collectives of a pass have the shape of the draft, so ranks whose drafts differ hang or crash: a policy that
measures times, or a drafter that fails on one rank, is enough. Here all ranks draft, because some drafters run a part
of the target, but before each pass one small `all_gather` brings everybody the first rank's draft. With it come
checksums of the last round: ranks that drew other units (other seeds, say) add up passes over different texts, which
no other error would tell. They all stop with a message, in the same place, so that none waits for another.
"""

import hashlib
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from typing import Any, Protocol, runtime_checkable

import torch
import torch.distributed as dist
from torch import Tensor

from mmspec.core.capabilities import DraftsWithModel, RunsTarget, Wrapper
from mmspec.core.policies import Clocked, Policy
from mmspec.core.protocols import Drafter, Target
from mmspec.core.rules.rule import Rule
from mmspec.core.state import State
from mmspec.core.types import Draft

_NONE, _CHAIN, _SHARED, _OWN = range(4)
"""Kinds of drafts: no draft, a chain, a tree that all rows share, a tree for every row."""
_HEADER = 4
"""Numbers of a message before the nodes: checksum, kind, nodes, deepest level."""


@runtime_checkable
class Sharded(Protocol):
    """A target whose passes may be collectives of several processes.

    Attributes:
        group: The process group of the ranks that have a shard each; None: one process runs the passes.
    """

    group: Any


class Ranks:
    """The ranks of a process group that decode one call together; the first one decides."""

    def __init__(self, group: Any) -> None:
        self.group = group
        self.size = dist.get_world_size(group)
        self.leads = dist.get_rank(group) == 0

    def refuse_parting(self, rule: Rule, policy: Policy, drafter: Drafter) -> None:
        """Refuse what would let ranks part; the drafter is bound."""
        if rule.exactness != "invariant":
            raise ValueError(
                f"over several ranks drafts travel without their distributions, which {type(rule).__name__} reads; "
                "use the rule 'match'"
            )
        together = (
            "hidden" in drafter.needs
            or (isinstance(drafter, RunsTarget) and drafter.runs_target)
            or (isinstance(drafter, DraftsWithModel) and isinstance(ranks_of(drafter.model), Ranks))
        )
        if isinstance(policy, Clocked) and together:
            raise ValueError(
                f"the ranks draft together here, and under {type(policy).__name__} each would measure another budget; "
                "use the policy 'fixed' or 'confidence'"
            )

    def meet(self, inputs: Any, *call: int | str) -> None:
        """Compare the calls that the ranks begin; before the prefill, whose collectives have the prompt's shape.

        Of the inputs tensors are compared, alone or in a mapping; `call` is what else must be the same.
        """
        prompt = dict(_tensors(inputs))
        shapes = [(name, tensor.dtype, tensor.shape) for name, tensor in prompt.items()]
        message = torch.tensor([_digest(repr((version("mmspec"), call, shapes)), *prompt.values())])
        self._refuse(
            self._gathered(message.to(next(iter(prompt.values()), message).device)),
            "began different calls: they need the same version of mmspec, the same prompts, limit, method and options",
        )

    def led(self, state: State, draft: Draft | None) -> Draft | None:
        """The first rank's draft of this round, not rooted, for all ranks; None if it drafts nothing.

        The first rank keeps its own object. Those of the others have no distribution, which no invariant rule reads.
        """
        gathered = self._gathered(_message(state, draft))
        parted = (
            "drew different units: they need the same seed (seed=, or torch.manual_seed with the same number right "
            f"before generate); the last equal round ended before unit {max(state.host.emitted)}"
        )
        self._refuse(gathered, parted)
        return draft if self.leads else _read(gathered[0], state)

    def part(self, state: State) -> None:
        """Compare the last round; called when all rows are done, where another rank may want one more round."""
        self.led(state, None)

    def _gathered(self, message: Tensor) -> list[Tensor]:
        gathered = [torch.empty_like(message) for _ in range(self.size)]
        dist.all_gather(gathered, message, group=self.group)
        return gathered

    def _refuse(self, gathered: list[Tensor], why: str) -> None:
        """Raise on every rank if some rank's checksum is not the first one's."""
        first, *others = torch.stack([message[0] for message in gathered]).tolist()
        others = [rank for rank, checksum in enumerate(others, 1) if checksum != first]
        if others:
            raise ValueError(f"ranks 0 and {', '.join(map(str, others))} of a tensor-parallel model {why}")


class Alone:
    """The one process of a call, which has nobody to agree with; its members are those of `Ranks`."""

    def refuse_parting(self, rule: Rule, policy: Policy, drafter: Drafter) -> None: ...

    def meet(self, inputs: Any, *call: int | str) -> None: ...

    def led(self, state: State, draft: Draft | None) -> Draft | None:
        return draft

    def part(self, state: State) -> None: ...


def ranks_of(target: Target) -> Ranks | Alone:
    """The ranks that a target runs on."""
    while isinstance(target, Wrapper):
        target = target.target
    return Ranks(target.group) if isinstance(target, Sharded) and target.group is not None else Alone()


def _tensors(inputs: Any, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """The tensors of a prompt, by where they are in it, in the same order on every rank."""
    if isinstance(inputs, Tensor):
        yield name, inputs
    elif isinstance(inputs, Mapping):
        for key in sorted(inputs):
            yield from _tensors(inputs[key], f"{name}/{key}")


def _digest(call: str, *parts: Tensor) -> int:
    """A 64-bit checksum of a text and of tensors."""
    hashed = hashlib.blake2b(call.encode(), digest_size=8)
    for part in parts:
        row = part.detach().cpu().flatten().contiguous()
        hashed.update(row.view(torch.uint8).numpy().tobytes())  # as bytes: numpy has no bfloat16
    return int.from_bytes(hashed.digest(), "little", signed=True)


def _message(state: State, draft: Draft | None) -> Tensor:
    """A rank's message to the others: the header, then units, validity and parents of the drafted nodes, padded."""
    assert state.step is not None
    checksum = _digest("", state.root, state.emitted, state.done, state.step.verdict.path)
    message = torch.zeros(
        _HEADER + 3 * state.rows * (state.budget.width - 1), dtype=torch.int64, device=state.root.device
    )
    message[0] = checksum
    if draft is None:
        return message
    index, nodes = draft.index, draft.units.shape[1]
    kind = _CHAIN if index.is_chain else _OWN if index.listed is None else _SHARED
    message[1:_HEADER] = torch.tensor([kind, nodes, index.deepest])
    parents = index.parent[:, 1:].expand(state.rows, -1) - 1
    body = torch.stack([draft.units.long(), draft.valid.long(), parents.long()]).flatten()
    message[_HEADER : _HEADER + len(body)] = body
    return message


def _read(message: Tensor, state: State) -> Draft | None:
    """The draft in a message."""
    _, kind, nodes, deepest = message[:_HEADER].tolist()
    if kind == _NONE:
        return None
    body = message[_HEADER : _HEADER + 3 * state.rows * nodes]
    units, valid, parents = body.reshape(3, state.rows, nodes)
    units, valid = units.to(state.root.dtype), valid.bool()
    if kind == _CHAIN:
        return Draft.chain(units, valid=valid)
    if kind == _SHARED:
        return Draft.tree(units, parents[0].tolist(), valid=valid)
    return Draft.tree(units, parents, valid=valid, deepest=deepest)
