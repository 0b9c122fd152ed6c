"""Drafts by mask tokens inside the target's own pass, at which a gated LoRA changes the target, and by a sampler.

"Your LLM Knows the Future", Samragh et al., arXiv 2507.11851: a target has k mask tokens behind its text, and its state
at the i-th says what stands i units behind the next one. A LoRA is added at masks alone, so that the text's rows are
the target's own; and a sampler of two layers reads the state with the unit drafted before it, so that units follow from
one another: a Markov chain. What both compute is in `mmspec_text.drafters.heads.gated`.
From notes on the paper, of which there is no official code: k = 8, rank 128, gate, sampler and losses. Chosen: α = 2 r,
as in a re-implementation; norms of the sampler with mean and bias; no mask reads another block's. The first round of a
call has no draft, as in `ppd`, by whose passes masks are carried.
A checkpoint, in a layout of ours, is an adapter with PEFT's keys of a LoRA, `mask_embeddings` `[mask, hidden]` and
`sampler.{0,1}.{linear,norm}.{weight,bias}`; `adapter_config.json` has `r` and `lora_alpha`.
Guarantee: drafts carry the distribution they are drawn from, or are point masses; exact under the rules that take the
form. The scores of nodes do not depend on masks: they are the same to the bit with any adapter.
Knobs: in the form `chain`, the paper's quadratic decoding, all k masks hang behind each of k drafted units, so that a
whole draft follows wherever the target stops. In `linear`, the paper's first way, they hang behind the last one alone:
a pass has 2 k + 1 nodes and not (k + 1)², and a draft that is not accepted whole is followed by a round without one.
Trees, whose nodes carry all masks too, are ours. Fewer `masks` cost less, and reach less far.
"""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from mmspec.core.hidden import FINAL
from mmspec.hosts.target import TransformersTarget
from mmspec.hosts.weight_files import differences
from mmspec.kits.text.tree_form import TreeForm
from mmspec.registry.options import option
from mmspec.registry.printable import shown
from mmspec_text.drafters.heads.block import Block, Scored
from mmspec_text.drafters.heads.entries import number, positive
from mmspec_text.drafters.heads.gated import GatedNetwork
from mmspec_text.drafters.heads.probes import ProbedTarget
from mmspec_text.drafters.heads.prompt_trees import PromptTrees, StateTree
from mmspec_text.drafters.heads.stored import fitted
from mmspec_text.drafters.ppd import ProbeDrafter, read_adapter

MASKS, PREFIX, ENDS = "mask_embeddings", "base_model.model.", (".lora_A.weight", ".lora_B.weight")


@dataclass(frozen=True)
class GatedAdapter:
    """A trained adapter."""

    name: str  # where it is from, for messages
    network: GatedNetwork  # it, joined to no target
    masks: int  # the first ones, which are used

    @property
    def embeddings(self) -> Tensor:
        """`[mask, hidden]`: number i, behind a unit, scores the unit i + 2 places behind it."""
        return self.network.embeddings[: self.masks].detach()


def read_gated(name: str) -> GatedAdapter:
    """Read an adapter from a folder or the hub."""
    what = f"the gated LoRA {name!r}"
    config, tensors = read_adapter(name, what)
    masks, down = tensors.get(MASKS), {key for key in tensors if key.endswith(ENDS[0])}
    names = sorted(key.removeprefix(PREFIX).removesuffix(ENDS[0]) for key in down)
    ups = [tensors.get(f"{PREFIX}{each}{ENDS[1]}") for each in names]
    if masks is None or masks.dim() != 2 or not names or any(up is None or up.dim() != 2 for up in ups):
        there = ", ".join(sorted(tensors)[:3]) or "none"
        raise ValueError(f"{what} has no matrix {MASKS}, or no pairs lora_A and lora_B. Its keys are {shown(there)}")
    rank = positive(config, "r", what)
    sizes = {
        each: (tensors[f"{PREFIX}{each}{ENDS[0]}"].shape[-1], len(up))
        for each, up in zip(names, ups, strict=True)
        if up is not None
    }
    with torch.device("meta"):
        scale = number(config, "lora_alpha", 2.0 * rank, what) / rank
        network = GatedNetwork(sizes, len(masks), masks.shape[1], rank, scale)
    weights = {f"masks.{place}": row for place, row in enumerate(masks)}
    for part, end in zip(("down", "up"), ENDS, strict=True):
        weights |= {f"{part}.{place}": tensors[f"{PREFIX}{each}{end}"] for place, each in enumerate(names)}
    weights |= {key: value for key, value in tensors.items() if key.startswith("sampler.")}
    if wrong := differences(that_nothing_reads={*tensors} - {MASKS} - {*weights} - stored_keys(names)):
        raise ValueError(f"{what}: not all of it is read: {wrong}; it is an adapter of another kind")
    return GatedAdapter(name, fitted(network, weights, what, "gated LoRA"), len(masks))


def stored_keys(names: Sequence[str]) -> set[str]:
    """The keys of the changes of layers of these names."""
    return {f"{PREFIX}{name}{end}" for name in names for end in ENDS}


@dataclass(frozen=True)
class GatedLoraOptions(TreeForm):
    """Options of `gated-lora`."""

    form: Literal["chain", "linear", "rerank", "greedy", "heap", "branching", "beam"] = option(  # type: ignore[assignment]
        "chain", "which nodes to draft; linear, rerank, greedy: rules match and relaxed, the others: any"
    )
    masks: Annotated[int, Field(ge=1)] | None = option(None, "masks that are used, the first ones; by default all")
    width: Annotated[int, Field(ge=1, le=64)] = option(
        4, "rerank: nodes expanded per level, and children of each; beam: nodes per level"
    )
    nodes: Annotated[int, Field(ge=1, le=512)] = option(
        8, "rerank: nodes that are verified, each of them with all masks"
    )
    model: Any = option(None, "the gated LoRA: a folder or a hub name")

    def trees(self, masks: int) -> PromptTrees | None:
        """In the form `linear` chains of 1, 2, … units, of which the last one carries all masks; else None."""
        if self.form != "linear":
            return None
        chains = [range(-1, units - 1) for units in range(1, masks + 1)]
        states = [StateTree((*c,), (0,) * len(c), (1.0,) * len(c), (*(0,) * len(c), masks)) for c in chains]
        return PromptTrees(tuple(states), float(masks))


class GatedLora(ProbeDrafter):
    """Drafts what a sampler makes of states at masks of the last pass; the memory of a call is these states."""

    kind = "gated-lora"
    called = "masks of a gated LoRA"
    stored = GatedAdapter
    read = staticmethod(read_gated)

    def __init__(self, options: GatedLoraOptions = GatedLoraOptions()) -> None:
        read = read_gated(options.model) if isinstance(options.model, str) else options.model
        if options.masks is not None and isinstance(read, GatedAdapter):
            if options.masks > read.masks:
                raise ValueError(f"the gated LoRA {read.name!r} has {read.masks} masks; masks={options.masks} is more")
            read = replace(read, masks=options.masks)
        super().__init__(replace(options, model=read))

    def probed(self, target: TransformersTarget, counts: Sequence[Sequence[int]] | None) -> ProbedTarget:
        """The target with masks behind its nodes, at which the adapter changes it; refuses layers that it has not."""
        network, lent = deepcopy(self.prompts.network), target.lend()  # what was read stays as it is stored
        wrong = network.unlike(target.model)
        if wrong:
            raise ValueError(
                f"the gated LoRA {self.prompts.name!r} is another target's: {shown(wrong[0])} is no linear layer of as "
                "many numbers here"
            )
        network.join(lent.embedding, lent.output, lent.device, lent.dtype)
        assert target.vocab is not None
        self._sampler, self._vocab = network, target.vocab
        return ProbedTarget(target.with_hidden((FINAL,)), self.prompts.embeddings, counts, network)

    def block(self, found: Tensor) -> Block:
        return Block(Scored(self._vocab), found, self._sampler)
