"""Learning over two vocabularies: the hybrid loss of OmniDraft (arXiv 2507.02659).

A text that the target emitted is read by the small model in its own pieces. Where a unit has a piece of its own, the
small model's distribution over such units is compared with the target's over the same ones (the paper: reverse KL,
`mmspec.Learning(loss="reverse-kl")`). Where a unit is spelled in several pieces, the target's distribution says nothing
of any piece but the first, and what is learnt is the spelling: -log Π q(piece), with the weight 0.2.
"""

from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from mmspec.core.hidden import FINAL
from mmspec.hosts.draft_models import stored_tokenizer
from mmspec.hosts.features import Reading
from mmspec.hosts.target import TransformersTarget
from mmspec.hosts.vocabulary import VocabularyMap
from mmspec.training.losses import DraftLoss, Kind, acceptance, draft_loss
from mmspec_zoo.vocabularies.stop_head import save_stop_head

JOINED = 0.2
"""The weight of joined units, from notes on the paper."""


class TwoVocabularies:
    """The lesson of a small model whose pieces are joined to a target's units, and of its head, if it has one. It is a
    `Lesson`.
    """

    def __init__(
        self,
        small: TransformersTarget,
        target: Any,
        vocabulary: VocabularyMap,
        loss: str,
        head: nn.Linear | None = None,
    ) -> None:
        if not isinstance(target, TransformersTarget) or target.model.config.is_encoder_decoder:
            raise ValueError("a small model learns for language models of transformers that read ids alone")
        self._small, self._target, self._head = small, target, head
        self._vocabulary, self._loss = vocabulary, DraftLoss(cast("Kind", loss))

    def weights(self) -> list[nn.Parameter]:
        return [*self._small.model.parameters(), *(() if self._head is None else self._head.parameters())]

    def loss(self, units: Tensor, counted: Tensor) -> Tensor:
        """The hybrid loss of a row, `[1, unit]` both."""
        vocabulary = self._vocabulary.to(units.device)
        with torch.no_grad():
            p = self._target.model(input_ids=units, use_cache=False).logits[0, :-1].float().softmax(-1)
        length = vocabulary.length[units[0]]
        there = torch.arange(vocabulary.longest, device=units.device) < length[:, None]
        pieces, end = vocabulary.spelling[units[0]][there], length.cumsum(0)
        with Reading(self._small.model_info, () if self._head is None else (FINAL,)) as reading:
            logits = self._small.model(input_ids=pieces[None], use_cache=False).logits[0].float()
        own = (vocabulary.draft_of >= 0).nonzero()[:, 0]
        at_units = logits[end[:-1] - 1][:, vocabulary.draft_of[own]]  # behind a unit's last piece
        direct = vocabulary.draft_of[units[0, 1:]] >= 0
        plain = draft_loss(at_units, p[:, own], counted[0, 1:] & direct, 0, self._loss)
        if self._head is not None:  # of all units, since those that were refused are the harder ones
            assert reading.states is not None
            guess = self._head(reading.states[0, end[:-1] - 1].detach().float())[:, 0]
            alpha = acceptance(at_units.detach(), p[:, own])
            plain = plain + torch.nn.functional.binary_cross_entropy_with_logits(guess, alpha)
        if bool(direct.all()):
            return plain
        nats = -logits[:-1].log_softmax(-1).gather(-1, pieces[1:, None])[:, 0]  # of every piece but the first
        which = torch.repeat_interleave(torch.arange(len(length), device=units.device), length)[1:]
        spelled = nats.new_zeros(len(length)).scatter_add(0, which, nats)[1:]
        joined = counted[0, 1:] & ~direct
        return plain + JOINED * (spelled * joined).sum() / joined.sum().clamp(min=1)

    def save(self, folder: Path) -> None:
        self._small.model.save_pretrained(folder)
        tokenizer = stored_tokenizer(self._small)
        if tokenizer is not None:
            tokenizer.save_pretrained(folder)
        if self._head is not None:
            save_stop_head(self._head, folder)
