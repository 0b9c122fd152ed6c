"""A draft model with another vocabulary, as a target in the ids of the larger target.

Its distributions are over the tokens that both vocabularies have, so a draft's distribution is one over the larger
target's units, and every rule stays exact. The units that it reads are translated: a node whose token it lacks becomes
a chain of several of its own tokens (pieces), and the node's children follow the last piece. Drafted nodes are one
piece each, because only common tokens are drawn.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mmspec.core.capabilities import Bounded
from mmspec.core.protocols import Target
from mmspec.core.transfer import on_device
from mmspec.core.tree import TreeIndex
from mmspec.core.types import Draft, Prefill, TargetOutput
from mmspec.hosts.vocabulary import VocabularyMap


@dataclass(frozen=True)
class TranslatedDraft:
    """A draft in the draft model's ids."""

    # The translated draft, rooted: node i of the original is the pieces `last[i] - pieces[i] + 1 … last[i]`
    draft: Draft
    last: Tensor  # `[batch, node]` int64: the last piece of each original node
    pieces: Tensor  # `[batch, node]` int64: the number of its pieces
    even: bool  # whether every node is one piece, so that node ids are the same in both drafts


@dataclass
class TranslatedTargetCache:
    cache: Any  # the draft model's own cache
    vocabulary: VocabularyMap  # the map, on the call's device
    length: Tensor  # `[batch]` int64: the committed pieces in the cache
    longest: int  # no row has more of them, on the host; the largest length itself where it was read for the last draft
    width: int  # most nodes of a draft, the root included
    spelled: TranslatedDraft | None = None  # the translation of the last pass's draft


class TranslatedTarget:
    """A target in the larger target's ids, over a model with other ids, by a map from the larger target's to its own; a
    draft model must offer `grow`.
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

    def start(self, inputs: Any, limit: int, width: int) -> Prefill:
        """Prefill a prompt: of the inputs, the larger target's ids are read, padded on the left, and their mask."""
        given = inputs if isinstance(inputs, Mapping) else {"input_ids": inputs}
        ids = given.get("input_ids")
        if ids is None:
            raise ValueError("a draft model with another vocabulary reads token ids: give input_ids")
        mask = given.get("attention_mask")
        mask = torch.ones_like(ids) if mask is None else mask[:, -ids.shape[1] :].long()
        vocabulary = self.vocabulary.to(ids.device)
        pieces, length = _prompt_pieces(vocabulary, ids, mask)
        pads = pieces.shape[1] - length
        pieces_mask = (torch.arange(pieces.shape[1], device=ids.device) >= pads[:, None]).long()
        # Every unit may take as many slots as the longest spelling, within the draft model's context.
        longest, more = pieces.shape[1], limit * vocabulary.longest
        if self.context is not None:
            more = min(more, max(limit, self.context - longest))
        inner = {"input_ids": pieces, "attention_mask": pieces_mask}
        started = self.target.start(inner, more, width * vocabulary.longest)
        cache = TranslatedTargetCache(started.cache, vocabulary, length, longest, width)
        return Prefill(cache, _translated(vocabulary, started.output), ids, (mask.cumsum(1) == 0).sum(1))

    def verify(self, cache: TranslatedTargetCache, draft: Draft, first: int = 0) -> TargetOutput:
        if first:
            assert cache.spelled is not None
            spelled = _extended(cache.vocabulary, cache.spelled, draft, first)
        else:
            spelled = self._begun(cache, draft)
        if self.context is not None and cache.longest + spelled.draft.index.deepest >= self.context:
            raise ValueError(f"in its own tokens, the text is longer than the draft model's context of {self.context}")
        inner = cache.spelled.draft.nodes if first and cache.spelled is not None else 0
        cache.spelled = spelled
        output = self.target.verify(cache.cache, spelled.draft, inner)
        return _translated(cache.vocabulary, output if first or spelled.even else output.take(spelled.last))

    def _begun(self, cache: TranslatedTargetCache, draft: Draft) -> TranslatedDraft:
        """A new draft in pieces.

        How many is the shape of the pass. Off the CPU, reading it is a wait, and a few nodes more cost little: there
        every node gets the columns of the longest spelling, unless that might exceed the context.
        """
        vocabulary = cache.vocabulary
        widths = [vocabulary.longest] * draft.nodes
        room = None if self.context is None else self.context - cache.longest - sum(widths) - cache.width
        if draft.units.device.type != "cpu" and (room is None or room > 0):
            return _spell(vocabulary, draft, widths, vocabulary.longest == 1)
        widths, uniform, cache.longest = _columns(vocabulary, draft, cache.length)
        return _spell(vocabulary, draft, widths, uniform)

    def commit(self, cache: TranslatedTargetCache, path: Tensor, count: Tensor) -> None:
        spelled = cache.spelled
        assert spelled is not None
        if not spelled.even:
            path, count = _pieces_of(cache.vocabulary, spelled, path, count)
        self.target.commit(cache.cache, path, count)
        cache.length, cache.longest = cache.length + count, cache.longest + path.shape[1] + 1

    def truncate(self, cache: TranslatedTargetCache, length: Tensor) -> None:
        raise NotImplementedError("a translated cache does not know where the larger target's units begin in it")


def _translated(vocabulary: VocabularyMap, output: TargetOutput) -> TargetOutput:
    assert output.logits is not None
    null = None if output.null is None else vocabulary.logits(output.null)
    return replace(output, logits=vocabulary.logits(output.logits), null=null)


def _prompt_pieces(vocabulary: VocabularyMap, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """The prompt's pieces `[batch, longest]`, padded on the left, and their number `[batch]`."""
    pieces = vocabulary.length[ids] * mask
    end = pieces.cumsum(1)
    length = end[:, -1]
    longest = int(length.max())
    order = torch.arange(vocabulary.longest, device=ids.device)
    place = (end - pieces + (longest - length)[:, None])[..., None] + order
    place = torch.where(order < pieces[..., None], place, longest)  # the last column is scratch
    spelling = vocabulary.spelling[ids].flatten(1)
    spelled = ids.new_zeros(len(ids), longest + 1).scatter_(1, place.flatten(1), spelling)
    return spelled[:, :longest], length


def _columns(vocabulary: VocabularyMap, draft: Draft, length: Tensor) -> tuple[list[int], bool, int]:
    """Every node's longest spelling in any row; whether all rows need these columns; the longest `length`."""
    pieces = vocabulary.length[draft.units]
    columns = torch.where(draft.valid, pieces, 1).amax(0)
    alike = (torch.where(draft.valid, pieces, columns) == columns).all().long()
    *widths, uniform, longest = torch.cat([columns, alike[None], length.amax()[None]]).tolist()
    return widths, bool(uniform), longest


def _spell(vocabulary: VocabularyMap, draft: Draft, widths: list[int], uniform: bool) -> TranslatedDraft:
    """A draft in pieces: `widths` are the columns of every node, enough for all rows, of which a row's unneeded ones
    are invalid; `uniform`: every row needs all columns of its valid nodes.
    """
    device, total = draft.units.device, sum(widths)
    columns = on_device(widths, device, torch.int64)
    pieces = torch.where(draft.valid, vocabulary.length[draft.units], columns)
    if total == draft.nodes:
        units = vocabulary.spelling[draft.units, 0]
        nodes = torch.arange(draft.nodes, device=device).expand_as(units)
        return TranslatedDraft(replace(draft, units=units), nodes, pieces, even=True)
    begin = columns.cumsum(0) - columns
    owner = on_device([node for node, width in enumerate(widths) for _ in range(width)], device)
    order, last = torch.arange(total, device=device), begin + pieces - 1
    piece = order - begin[owner]
    parent = torch.where(piece == 0, _parent_pieces(last, draft.index.parent)[:, owner], order - 1)
    chained = uniform and draft.index.is_chain
    index = TreeIndex.chain(total, device) if chained else TreeIndex.dynamic(parent)
    units = vocabulary.spelling[draft.units[:, owner], piece].clamp(min=0)
    valid = draft.valid[:, owner] & (piece < pieces[:, owner])
    return TranslatedDraft(Draft(units, index, valid), last, pieces, even=False)


def _extended(vocabulary: VocabularyMap, before: TranslatedDraft, draft: Draft, first: int) -> TranslatedDraft:
    """The translation `before`, and behind it the nodes of `draft` from `first` on, one piece each."""
    units = torch.cat([before.draft.units, vocabulary.spelling[draft.units[:, first:], 0]], 1)
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
        parent = _parent_pieces(last, draft.index.parent)[:, first:]
        index = TreeIndex.dynamic(torch.cat([before.draft.index.parent.expand(rows, -1), parent], 1))
    return TranslatedDraft(Draft(units, index, valid), last, pieces, before.even)


def _pieces_of(
    vocabulary: VocabularyMap, spelled: TranslatedDraft, path: Tensor, count: Tensor
) -> tuple[Tensor, Tensor]:
    """A path of nodes (without the root) as the path of their pieces (without the root's first), and its count."""
    nodes = torch.nn.functional.pad(path.clamp(min=0), (1, 0))
    kept = torch.arange(nodes.shape[1], device=nodes.device) < count[:, None]
    pieces = spelled.pieces.gather(1, nodes) * kept
    end, total = pieces.cumsum(1), spelled.draft.nodes
    order = torch.arange(vocabulary.longest, device=nodes.device)
    place = (end - pieces)[..., None] + order
    place = torch.where(order < pieces[..., None], place, total)
    source = (spelled.last.gather(1, nodes) - pieces + 1)[..., None] + order
    along = torch.full((len(nodes), total + 1), -1, device=nodes.device)
    along.scatter_(1, place.flatten(1), source.flatten(1))
    return along[:, 1:total], end[:, -1]


def _parent_pieces(last: Tensor, parent: Tensor) -> Tensor:
    """The parent of each node's first piece: the last piece of its parent node `[batch | 1, node]`; -1 at the root."""
    return torch.where(parent < 0, -1, last.gather(1, parent.clamp(min=0).expand(len(last), -1)))
