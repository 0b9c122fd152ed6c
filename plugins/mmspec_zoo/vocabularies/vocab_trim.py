"""`vocab-trim`: a smaller model whose output layer keeps the most frequent ids alone.

VocabTrim (arXiv 2506.22694), of draft models; heads have it as the option `keep` of `eagle`, `p-eagle` and `mtp`.
With the counts c of all ids over a corpus, best one that the target itself wrote, V_trim is the k ids with the largest
c, and the drafter's output layer becomes W_trim = W[V_trim]: it computes k logits and not V. It drafts from q_trim,
normalised over V_trim; q over the target's ids is q_trim there and 0 elsewhere.
The live model does not change: the smaller layer is part of a copy of its modules that shares all other weights.
Nothing is trained. Of equally frequent ids the smaller ones are kept, which a tokenizer made earlier. The ends of texts
and all other special ids are always kept, and count among the k.
The paper could not be read here, only our notes on it: how ties are broken, the default of k and the schedule of the
counting while drafting are ours.
Without a corpus the target's own output is counted from call to call: the whole layer is used until `after` units came,
and the rows are chosen anew whenever the number of units has doubled, always between two calls.
With another tokenizer, the ids that are counted are the target's, and the partners of the kept ones are kept.
Guarantee: `draft-model`'s; the draft's distribution is the trimmed one. The target is as it was.
Knobs: `keep` (fewer make drafting faster and are accepted less often); `corpus` (the closer to what will be written,
the fewer ids are enough); `after` (without a corpus: later is a better choice, and a slower begin).
"""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn
from transformers import PreTrainedModel

from mmspec.core.drafters.draft_model import DraftModel, DraftModelMemory
from mmspec.core.drafters.emitted import emitted_units
from mmspec.core.drafters.shapes import Chain
from mmspec.core.protocols import Target
from mmspec.core.state import State
from mmspec.core.transfer import moved
from mmspec.core.types import Draft, Prefill, Step, TargetOutput
from mmspec.hosts.attention import share_lock
from mmspec.hosts.devices import device_of, tensor_parallel_group
from mmspec.hosts.self_check import checked
from mmspec.hosts.target import TransformersTarget
from mmspec.hosts.translated import TranslatedTarget
from mmspec.kits.text.corpus import counted, kept_ids
from mmspec.kits.text.small_model import (
    DraftModelOptions,
    in_target_ids,
    load_small_model,
    special_ids,
    target_tokenizer,
)
from mmspec.registry.options import option
from mmspec_zoo.specs import VOCAB_TRIM


@dataclass
class CutHeadCache:
    cache: Any  # the draft model's own cache, whose passes run the modules that the call began with
    kept: Tensor  # `[id]` int64: the ids of these modules' output layer


class CutHeadTarget:
    """A target over a copy of a model's modules whose output layer keeps some ids, ascending."""

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
    """Logits `[…, kept]` of some ids as `[…, vocab]`; -inf elsewhere. Those of a prompt without ids are over all ids
    already, and are returned as they are.
    """
    if values.shape[-1] == vocab:
        return values
    return values.new_full((*values.shape[:-1], vocab), -torch.inf).index_copy_(-1, kept, values)


@torch.no_grad()
def with_cut_head(model: PreTrainedModel, kept: Tensor) -> PreTrainedModel:
    """A copy of a model's modules that shares its weights, with the rows `kept [id]` alone of its output layer. Refuses
    an output layer that is no plain linear one, lies on several ranks, or is not what the model runs.
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


SHARE = 4  # by default one of so many ids is kept


@dataclass(frozen=True)
class VocabTrimOptions(DraftModelOptions):
    keep: Annotated[int, Field(ge=1)] | None = option(
        None, "k: ids that the output layer keeps, special ones included; by default a quarter of all"
    )
    corpus: Any = option(
        None,
        "what is counted: a UTF-8 text file, a file of ids (.json, .safetensors), texts, or lists of ids; "
        "by default the target's own output",
    )
    after: Annotated[int, Field(ge=1)] = option(
        2048, "without a corpus: units that are counted before the output layer is cut"
    )


class VocabTrim(DraftModel):
    """Drafts a chain with a smaller transformers model and a part of its output layer."""

    def __init__(self, options: VocabTrimOptions = VocabTrimOptions()) -> None:
        if isinstance(options.corpus, (str, Path)) and not Path(options.corpus).is_file():
            raise ValueError(f"no corpus at {options.corpus}; give a UTF-8 text file, or ids (.json, .safetensors)")
        self.options, self._small = options, load_small_model(options, VOCAB_TRIM.name)
        self.kept: list[int] | None = None
        self._counts = torch.zeros(0, dtype=torch.int64)
        self._cut_at = options.after
        super().__init__(self._small, Chain(options.sure))

    def bind(self, target: Target) -> None:
        options = self.options
        if options.assistant_tokenizer is None and self._small.vocab == target.vocab:
            options = replace(options, tokenizer=None)  # it reads the corpus alone: the ids are the same
        self.model = self._whole = in_target_ids(self._small, target, options)
        super().bind(target)
        assert target.vocab is not None
        tokenizer = target_tokenizer(target, self.options)
        self._special = special_ids(target, tokenizer)
        self._keep = self._wanted(target.vocab)
        with torch.inference_mode(False):  # calls inside and outside of inference mode write to the counts
            self._counts = torch.zeros(target.vocab, dtype=torch.int64, device="cpu")
        if self.options.corpus is not None:
            self._cut(torch.from_numpy(counted(self.options.corpus, tokenizer, target.vocab)))

    def start(self, state: State, inputs: Any) -> DraftModelMemory:
        if self.options.corpus is None:
            with torch.inference_mode(False):
                self._counts = moved(self._counts, state.root.device)
            total = int(self._counts.sum())
            if total >= self._cut_at:
                self._cut_at = 2 * total
                self._cut(self._counts.cpu())
            if state.step is not None:
                self._count(state, state.step)
        return super().start(state, inputs)

    def observe(self, state: State, step: Step) -> None:
        super().observe(state, step)
        if self.options.corpus is None:
            self._count(state, step)

    def _count(self, state: State, step: Step) -> None:
        """Count what a round emitted."""
        units, emitted = emitted_units(state, step)
        self._counts.scatter_add_(0, units.flatten(), emitted.flatten().long())

    def _cut(self, counts: Tensor) -> None:
        """Draft with the rows of the most frequent ids; with the whole layer if those are all."""
        if self._keep >= len(counts):
            return
        whole = self._whole
        if isinstance(whole, TranslatedTarget):
            partner = whole.vocabulary.draft_of.cpu()
            self.kept = kept_ids(counts, self._special, self._keep, partner >= 0)
            rows = partner[torch.tensor(self.kept)].sort().values.tolist()
            self.model = TranslatedTarget(CutHeadTarget(self._small, rows), whole.vocabulary)
        else:
            self.kept = kept_ids(counts, self._special, self._keep)
            self.model = CutHeadTarget(self._small, self.kept)

    def _wanted(self, vocab: int) -> int:
        """The number of ids that are kept."""
        keep, least = self.options.keep, len(self._special) + 1
        if keep is None:
            return max(-(-vocab // SHARE), least)
        if keep < min(least, vocab):
            raise ValueError(
                f"keep={keep} leaves no id to draft beside the {len(self._special)} special ones, which are always "
                f"kept; give {least} or more"
            )
        return keep
