"""A draft model with another vocabulary, as a target in the ids of the one that it drafts for.

Its distributions lie on the tokens that both have, so a draft's distribution is one over the target's units, and every
rule stays exact. What it reads is translated: a node whose token it lacks becomes a chain of pieces, its children hang
on the last one. Drafted nodes are one piece each, because nothing else is ever drawn.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mmspec.core.capabilities import Bounded
from mmspec.core.protocols import Target
from mmspec.core.tree import TreeIndex
from mmspec.core.types import Draft, Started, TargetOutput
from mmspec.hosts.vocabulary import VocabularyMap


@dataclass(frozen=True)
class TranslatedDraft:
    """A draft in both numberings.

    Attributes:
        draft: In draft ids, rooted: node i of the original is the pieces `last[i] - pieces[i] + 1 … last[i]`.
        last: `[batch, node]`: where each original node ends.
        pieces: `[batch, node]`: how many it has.
        even: Every node is one piece, and stands where it stood.
    """

    draft: Draft
    last: Tensor
    pieces: Tensor
    even: bool


@dataclass
class TranslatedTargetCache:
    """One call's memory.

    Attributes:
        cache: The draft model's own.
        length: `[batch]` pieces in it.
        longest: The largest of them at the last fresh pass, on the host.
        spelled: What the last pass was over.
    """

    cache: Any
    length: Tensor
    longest: int
    spelled: TranslatedDraft | None = None


class TranslatedTarget:
    """Speaks the larger target's ids for a model of other ones.

    Args:
        target: The draft model; it offers `grow` if it is to draft.
        vocabulary: The map.

    Raises:
        ValueError: The map was made for another size.
    """

    def __init__(self, target: Target, vocabulary: VocabularyMap) -> None:
        if target.vocab != vocabulary.draft_vocab:
            raise ValueError(
                f"the map is for {vocabulary.draft_vocab} draft ids and the model has {target.vocab}; "
                "give the model's own size (config.vocab_size), not the tokenizer's"
            )
        self.target = target
        self.vocabulary = vocabulary
        self.offers = target.offers - {"truncate"}
        self.vocab: int | None = len(vocabulary.draft_of)
        self.context: int | None = target.context if isinstance(target, Bounded) else None

    def start(self, inputs: Any, limit: int, width: int) -> Started:
        """Prefill `inputs`: ids of the larger target `[batch, prompt]`, padded on the left, or a mapping of
        `input_ids` and `attention_mask`.
        """
        given = inputs if isinstance(inputs, Mapping) else {"input_ids": inputs}
        ids = given.get("input_ids")
        if ids is None:
            raise ValueError("a draft model with another vocabulary reads token ids: give input_ids")
        mask = given.get("attention_mask")
        mask = torch.ones_like(ids) if mask is None else mask[:, -ids.shape[1] :].long()
        self.vocabulary = self.vocabulary.to(ids.device)
        pieces, length = self._prompt(ids, mask)
        behind = pieces.shape[1] - length
        there = (torch.arange(pieces.shape[1], device=ids.device) >= behind[:, None]).long()
        # Every unit may take as many slots as the longest spelling; but no more than the model can stand on.
        longest, more = pieces.shape[1], limit * self.vocabulary.longest
        if self.context is not None:
            more = min(more, max(limit, self.context - longest))
        started = self.target.start(
            {"input_ids": pieces, "attention_mask": there}, more, width * self.vocabulary.longest
        )
        memory = TranslatedTargetCache(started.cache, length, longest)
        return Started(memory, self._translated(started.output), ids, (mask.cumsum(1) == 0).sum(1))

    def verify(self, cache: TranslatedTargetCache, draft: Draft, first: int = 0) -> TargetOutput:
        if first:
            assert cache.spelled is not None
            spelled = self._grown(cache.spelled, draft, first)
        else:
            spelled, cache.longest = self._spell(draft, cache.length)
        if self.context is not None and cache.longest + spelled.draft.index.deepest >= self.context:
            raise ValueError(f"in its own tokens, the text is longer than the draft model's context of {self.context}")
        inner = cache.spelled.draft.nodes if first and cache.spelled is not None else 0
        cache.spelled = spelled
        output = self.target.verify(cache.cache, spelled.draft, inner)
        return self._translated(output if first or spelled.even else output.take(spelled.last))

    def commit(self, cache: TranslatedTargetCache, path: Tensor, count: Tensor) -> None:
        spelled = cache.spelled
        assert spelled is not None
        if not spelled.even:
            path, count = self._pieces_of(spelled, path, count)
        self.target.commit(cache.cache, path, count)
        cache.length = cache.length + count

    def truncate(self, cache: TranslatedTargetCache, length: Tensor) -> None:
        raise NotImplementedError("a translated cache does not know where the larger target's units begin in it")

    def _translated(self, output: TargetOutput) -> TargetOutput:
        assert output.logits is not None
        null = None if output.null is None else self.vocabulary.logits(output.null)
        return replace(output, logits=self.vocabulary.logits(output.logits), null=null)

    def _prompt(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """The prompt's pieces `[batch, longest]`, padded on the left, and their number `[batch]`."""
        table = self.vocabulary
        pieces = table.length[ids] * mask
        end = pieces.cumsum(1)
        length = end[:, -1]
        longest = int(length.max())
        order = torch.arange(table.longest, device=ids.device)
        place = (end - pieces + (longest - length)[:, None])[..., None] + order
        place = torch.where(order < pieces[..., None], place, longest)  # the last column is scratch
        spelled = ids.new_zeros(len(ids), longest + 1).scatter_(1, place.flatten(1), table.spelling[ids].flatten(1))
        return spelled[:, :longest], length

    def _spell(self, draft: Draft, length: Tensor) -> tuple[TranslatedDraft, int]:
        """A draft in pieces, and the longest row's `length`.

        Node i takes as many columns as its longest spelling in any row; where a row needs fewer, the rest is invalid.
        The number of columns is the shape of the pass, so it is read on the host whenever a draft is begun, and not
        while it grows.
        """
        table, device = self.vocabulary, draft.units.device
        pieces = table.length[draft.units]
        columns = torch.where(draft.valid, pieces, 1).amax(0)
        pieces = torch.where(draft.valid, pieces, columns)
        alike = (pieces == columns).all().long()
        widths = torch.cat([columns, alike[None], length.amax()[None]]).tolist()
        longest, uniform = widths.pop(), bool(widths.pop())
        if sum(widths) == draft.nodes:
            units = table.spelling[draft.units, 0]
            nodes = torch.arange(draft.nodes, device=device).expand_as(units)
            return TranslatedDraft(replace(draft, units=units), nodes, pieces, even=True), longest
        total = sum(widths)
        begin = columns.cumsum(0) - columns
        owner = torch.arange(draft.nodes, device=device).repeat_interleave(columns, output_size=total)
        order = torch.arange(total, device=device)
        piece = order - begin[owner]
        last = begin + pieces - 1
        above = _on(last, draft.index.parent)
        parent = torch.where(piece == 0, above[:, owner], order - 1)
        chained = uniform and draft.index.is_chain
        index = TreeIndex.chain(total, device) if chained else TreeIndex.dynamic(parent)
        units = table.spelling[draft.units[:, owner], piece].clamp(min=0)
        valid = draft.valid[:, owner] & (piece < pieces[:, owner])
        return TranslatedDraft(Draft(units, index, valid), last, pieces, even=False), longest

    def _grown(self, before: TranslatedDraft, draft: Draft, first: int) -> TranslatedDraft:
        """The nodes from `first` on, one piece each, behind what was spelled already."""
        units = torch.cat([before.draft.units, self.vocabulary.spelling[draft.units[:, first:], 0]], 1)
        valid = torch.cat([before.draft.valid, draft.valid[:, first:]], 1)
        rows, new = len(units), draft.nodes - first
        places = torch.arange(before.draft.nodes, before.draft.nodes + new, device=units.device).expand(rows, -1)
        last = torch.cat([before.last, places], 1)
        pieces = torch.cat([before.pieces, torch.ones_like(places)], 1)
        if before.even:
            index = draft.index
        elif before.draft.index.is_chain and draft.index.is_chain:
            index = TreeIndex.chain(units.shape[1], units.device)
        else:
            parent = _on(last, draft.index.parent)[:, first:]
            index = TreeIndex.dynamic(torch.cat([before.draft.index.parent.expand(rows, -1), parent], 1))
        return TranslatedDraft(Draft(units, index, valid), last, pieces, before.even)

    def _pieces_of(self, spelled: TranslatedDraft, path: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
        """A path of nodes, root not counted, as the path of their pieces, the root's first not counted."""
        nodes = torch.nn.functional.pad(path.clamp(min=0), (1, 0))
        kept = torch.arange(nodes.shape[1], device=nodes.device) < count[:, None]
        pieces = spelled.pieces.gather(1, nodes) * kept
        end, total = pieces.cumsum(1), spelled.draft.nodes
        order = torch.arange(self.vocabulary.longest, device=nodes.device)
        place = (end - pieces)[..., None] + order
        place = torch.where(order < pieces[..., None], place, total)
        source = (spelled.last.gather(1, nodes) - pieces + 1)[..., None] + order
        along = torch.full((len(nodes), total + 1), -1, device=nodes.device)
        along.scatter_(1, place.flatten(1), source.flatten(1))
        return along[:, 1:total], end[:, -1]


def _on(last: Tensor, parent: Tensor) -> Tensor:
    """Where each node hangs: the last piece of its parent `[batch | 1, node]`; -1 at the root."""
    return torch.where(parent < 0, -1, last.gather(1, parent.clamp(min=0).expand(len(last), -1)))
