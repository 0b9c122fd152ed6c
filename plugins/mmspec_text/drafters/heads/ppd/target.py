"""A target whose passes carry prompt tokens behind every node: probes, which are scored and never accepted.

Behind a node hang the prompt tokens, a chain at the positions that follow it. They see the node's path and one another;
no node sees them, so that nodes have the scores that they have without them. Prompt tokens are no units: their
embeddings take the place of those of the units that stand in for them.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from mmspec.core.tree import TreeIndex
from mmspec.core.types import Draft, Prefill, TargetOutput
from mmspec.hosts.target import TransformersTarget, TransformersTargetCache


class PromptedTarget:
    """See the module; `TargetOutput.auxiliary` holds the scores of the prompt tokens.

    Args:
        target: The target.
        embeddings: `[prompt token, hidden]`.
    """

    def __init__(self, target: TransformersTarget, embeddings: Tensor) -> None:
        self.target, self.embeddings = target, embeddings
        self.offers, self.vocab, self.context = target.offers, target.vocab, target.context

    @property
    def model(self) -> Any:
        """The live model."""
        return self.target.model

    def start(self, inputs: Any, limit: int, width: int) -> Prefill:
        return self.target.start(inputs, limit, width * (1 + len(self.embeddings)))

    def verify(self, cache: TransformersTargetCache, draft: Draft, first: int = 0) -> TargetOutput:
        """As `Target.verify`; `auxiliary` is `[batch, node, prompt token, vocab]`."""
        nodes, prompts = draft.nodes, len(self.embeddings)
        if first:
            return self.target.verify(cache, draft, first)
        with self._embedded(nodes):
            output = self.target.verify(cache, probed(draft, prompts))
        assert output.logits is not None
        return TargetOutput(output.logits[:, :nodes], auxiliary=output.logits[:, nodes:].unflatten(1, (nodes, prompts)))

    def commit(self, cache: TransformersTargetCache, path: Tensor, count: Tensor) -> None:
        self.target.commit(cache, path, count)

    def truncate(self, cache: TransformersTargetCache, length: Tensor) -> None:
        self.target.truncate(cache, length)

    def synced(self, cache: TransformersTargetCache, emitted: Sequence[int]) -> None:
        self.target.synced(cache, emitted)

    def export(self, cache: TransformersTargetCache, sequences: Tensor, emitted: Tensor) -> Any:
        return self.target.export(cache, sequences, emitted)

    @contextmanager
    def _embedded(self, nodes: int) -> Iterator[None]:
        """A block in which units behind the first `nodes` of a pass have the embeddings of prompt tokens."""
        thread = threading.get_ident()

        def replaced(module: nn.Module, args: Any, output: Tensor) -> Tensor:
            if threading.get_ident() != thread:  # the model may run in another thread, for somebody else
                return output
            own = self.embeddings.to(output.device, output.dtype).repeat(nodes, 1).expand(len(output), -1, -1)
            return torch.cat([output[:, :nodes], own], 1)

        hook = self.model.get_input_embeddings().register_forward_hook(replaced)
        try:
            yield
        finally:
            hook.remove()


def probed(draft: Draft, prompts: int) -> Draft:
    """A rooted draft with a chain of so many nodes behind each of its own; they come last, node by node."""
    nodes, index = draft.nodes, draft.index
    order = torch.arange(nodes * prompts, device=draft.units.device)
    behind = torch.where(order % prompts == 0, order // prompts, nodes + order - 1)
    if index.listed is not None:
        new = (i // prompts if i % prompts == 0 else nodes + i - 1 for i in range(nodes * prompts))
        tree = TreeIndex.static([*index.listed, *new], draft.units.device)
    else:
        parents = torch.cat([index.parent, behind.expand(len(index.parent), -1)], 1)
        tree = TreeIndex.dynamic(parents, index.deepest + prompts)
    units = torch.cat([draft.units, draft.units[:, :1].expand(-1, len(order))], 1)
    return Draft(units, tree, torch.cat([draft.valid, draft.valid.repeat_interleave(prompts, 1)], 1))
