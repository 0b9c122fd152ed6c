"""`vocab-trim`: a smaller model whose output layer keeps the most frequent ids alone.

VocabTrim (arXiv 2506.22694), of draft models; heads have it as the option `keep` of `eagle`, `p-eagle` and `mtp`.
With the counts c of all ids over a corpus, best one that the target itself wrote, V_trim is the k ids with the largest
c, and the drafter's output layer becomes W_trim = W[V_trim]: it computes k logits and not V. It drafts from q_trim,
normalised over V_trim; q over the target's ids is q_trim there and 0 elsewhere.
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

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from mmspec.core.drafters.draft_model import DraftModel, DraftModelMemory
from mmspec.core.drafters.emitted import emitted_units
from mmspec.core.drafters.shapes import Chain
from mmspec.core.protocols import Target
from mmspec.core.state import State
from mmspec.core.transfer import moved
from mmspec.core.types import Step
from mmspec.hosts.translated import TranslatedTarget
from mmspec.kits.text.frequent import counted, kept_ids
from mmspec.kits.text.small_model import (
    DraftModelOptions,
    in_target_ids,
    load_small_model,
    special_ids,
    target_tokenizer,
)
from mmspec_zoo.specs import VOCAB_TRIM
from mmspec_zoo.vocabularies.cut_head import CutHeadTarget

SHARE = 4
"""By default one of so many ids is kept."""


@dataclass(frozen=True)
class VocabTrimOptions(DraftModelOptions):
    keep: Annotated[int, Field(ge=1)] | None = field(
        default=None,
        metadata={"help": "k: ids that the output layer keeps, special ones included; by default a quarter of all"},
    )
    corpus: Any = field(
        default=None,
        metadata={
            "help": "what is counted: a UTF-8 text file, a file of ids (.json, .safetensors), texts, or lists of ids; "
            "by default the target's own output"
        },
    )
    after: Annotated[int, Field(ge=1)] = field(
        default=2048, metadata={"help": "without a corpus: units that are counted before the output layer is cut"}
    )


class VocabTrim(DraftModel):
    """Drafts a chain with a smaller transformers model and a part of its output layer.

    Raises:
        ValueError: No model was named, it cannot be loaded, or there is no such corpus.
    """

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
