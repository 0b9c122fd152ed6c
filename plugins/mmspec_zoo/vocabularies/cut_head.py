"""A draft model whose output layer has the rows of some ids alone, as a target over the whole vocabulary.

Most of a small model's time goes into the product with its output layer, and few ids are ever drafted. The rows of the
kept ids are copied into a smaller layer, so that the product is really smaller; in the target's output all other ids
have the logit -inf, so that the distribution is normalised over the kept ids.

The live model does not change: the smaller layer is part of a copy of its modules that shares all other weights.
"""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from mmspec.core.types import Draft, Prefill, TargetOutput
from mmspec.hosts.attention import share_lock
from mmspec.hosts.devices import device_of, tensor_parallel_group
from mmspec.hosts.self_check import checked
from mmspec.hosts.target import TransformersTarget


@dataclass
class CutHeadCache:
    cache: Any  # the draft model's own cache, whose passes run the modules that the call began with
    kept: Tensor  # `[id]` int64: the ids of these modules' output layer


class CutHeadTarget:
    """A target over a copy of a model's modules whose output layer keeps some ids, ascending.

    Raises:
        ValueError: An id does not exist, or the output layer cannot be cut; says why.
    """

    def __init__(self, target: TransformersTarget, kept: Sequence[int]) -> None:
        assert target.vocab is not None
        if not kept or not 0 <= min(kept) <= max(kept) < target.vocab:
            raise ValueError(f"an output layer keeps ids out of 0 … {target.vocab - 1}, at least one; got {kept!r:.80}")
        self.vocab: int | None = target.vocab
        self.offers = target.offers - {"truncate"}
        self.context = target.context
        self.kept = torch.tensor(kept, device=device_of(target.model))
        self.target = copy(target)
        self.target.model_info = replace(target.model_info, model=with_cut_head(target.model, self.kept))
        self.target.passes = checked(self.target.model_info)

    def start(self, inputs: Any, limit: int, width: int) -> Prefill:
        started = self.target.start(inputs, limit, width)
        cache = CutHeadCache(started.cache, self.kept)
        return replace(started, cache=cache, output=self._widened(cache, started.output))

    def verify(self, cache: CutHeadCache, draft: Draft, first: int = 0) -> TargetOutput:
        return self._widened(cache, self.target.verify(cache.cache, draft, first))

    def commit(self, cache: CutHeadCache, path: Tensor, count: Tensor) -> None:
        self.target.commit(cache.cache, path, count)

    def synced(self, cache: CutHeadCache, emitted: Sequence[int]) -> None:
        self.target.synced(cache.cache, emitted)

    def truncate(self, cache: CutHeadCache, length: Tensor) -> None:
        raise NotImplementedError("a draft model with a cut output layer is never taken back")

    def _widened(self, cache: CutHeadCache, output: TargetOutput) -> TargetOutput:
        """The output over all ids."""
        assert self.vocab is not None and output.logits is not None
        logits = widened(output.logits, cache.kept, self.vocab)
        null = None if output.null is None else widened(output.null, cache.kept, self.vocab)
        return replace(output, logits=logits, null=null)


def widened(values: Tensor, kept: Tensor, vocab: int) -> Tensor:
    """Logits `[…, kept]` of some ids as `[…, vocab]`; -inf elsewhere.

    Those of a prompt without ids are over all ids already, and are returned as they are.
    """
    if values.shape[-1] == vocab:
        return values
    return values.new_full((*values.shape[:-1], vocab), -torch.inf).index_copy_(-1, kept, values)


@torch.no_grad()
def with_cut_head(model: PreTrainedModel, kept: Tensor) -> PreTrainedModel:
    """A copy of a model's modules that shares its weights, with the rows `kept [id]` alone of its output layer.

    Raises:
        ValueError: The output layer is not a plain linear layer, lies on several ranks, or is not what the model runs.
    """
    kind, head = type(model).__name__, model.get_output_embeddings()
    if type(head) is not nn.Linear or head.weight.is_meta:
        named = "none" if head is None else type(head).__name__
        raise ValueError(f"only a plain linear output layer can be cut, whose weights are here; {kind} has {named}")
    if tensor_parallel_group(model) is not None:
        raise ValueError("the output layer lies on several ranks, so that its rows cannot be cut")
    with torch.inference_mode(False):
        cut = nn.Linear(head.in_features, len(kept), head.bias is not None, device="meta")
        cut.weight = nn.Parameter(head.weight[kept], requires_grad=False)
        if head.bias is not None:
            cut.bias = nn.Parameter(head.bias[kept], requires_grad=False)
    cut.training = head.training
    places = [name for name, module in model.named_modules(remove_duplicate=False) if module is head]
    copied = _copied(model)
    for place in places:
        *above, last = place.split(".")
        parent: nn.Module = copied
        for part in above:
            child = parent._modules[part] = _copied(parent._modules[part])
            parent = child
        parent._modules[last] = cut
    share_lock(copied, model)
    logits = copied(input_ids=kept[:1, None], use_cache=False).logits
    if logits.shape[-1] != len(kept):
        raise ValueError(
            f"{kind} returns {logits.shape[-1]} logits whatever rows its output layer has ({len(kept)}), so that it "
            "cannot be cut: its forward was replaced, or it does not use get_output_embeddings()"
        )
    return copied


def _copied(module: Any) -> Any:
    """A copy of a module, without copies of its children and weights."""
    kind: Any = type(module)
    other = kind.__new__(kind)
    other.__dict__.update(module.__dict__)
    other._modules = dict(module._modules)
    return other
