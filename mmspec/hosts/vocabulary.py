"""What a token of one vocabulary is in another: for draft models with a tokenizer, or a padded size, of their own.

Token-level intersection (TLI, Timor et al., arXiv 2502.05202): tokens that stand for the same bytes in both are mapped,
and only they are ever drafted. Byte-level alphabets ("Ġthe"), sentencepiece ("▁the") and byte tokens (<0x0A>) become
bytes first; special tokens are equal by content, or by role (end, begin, padding). What the target emits and the draft
model lacks is context only, and is spelled in several of its tokens.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

LONGEST = 8
"""Draft tokens that spell one token of the target at most; of longer spellings the end is kept."""

ROLES = ("eos_token_id", "bos_token_id", "pad_token_id")

Key = tuple[str, bytes]  # kind (text, byte, special) and content of a token
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True)
class VocabularyMap:
    """From the target's ids to the draft model's.

    Attributes:
        draft_of: `[target]` int64: the draft id of the same token; -1 where there is none. No draft id comes twice.
        spelling: `[target, longest]` int64: draft ids that spell the token, padded with -1 on the right.
        length: `[target]` int64: how many they are, at least 1.
        draft_vocab: Size of the draft model's vocabulary.
    """

    draft_of: Tensor
    spelling: Tensor
    length: Tensor
    draft_vocab: int

    @staticmethod
    def padded(target: int, draft: int, tokens: int | None = None) -> "VocabularyMap":
        """One tokenizer, two padded sizes: ids mean the same as far as both have them, and are `tokens`, if known."""
        ids = torch.arange(target, device="cpu")
        draft_of = torch.where(ids < min(draft, target if tokens is None else tokens), ids, -1)
        return VocabularyMap(draft_of, draft_of.clamp(min=0)[:, None], torch.ones_like(ids), draft)

    @staticmethod
    def between(target_tokenizer: Any, draft_tokenizer: Any, target: int, draft: int) -> "VocabularyMap":
        """Two tokenizers of transformers, and the sizes of the models' vocabularies.

        Where they are one, and the models have padded it to sizes of their own, padding is never drafted.

        Raises:
            ValueError: The two have no token in common.
        """
        words = target_tokenizer.get_vocab()
        tokens = max(words.values(), default=-1) + 1
        if tokens <= min(target, draft) and words == draft_tokenizer.get_vocab():
            return VocabularyMap.padded(target, draft, tokens)
        theirs, ours = _keys(draft_tokenizer, draft), _keys(target_tokenizer, target)
        roles = _roles(target_tokenizer, draft_tokenizer, target, draft)
        pairs = _paired(ours, theirs, roles)
        if not pairs:
            raise ValueError("the two tokenizers have no token in common, so the draft model cannot draft a single one")
        spelt = {t: [d] for t, d in pairs.items()}
        spelt |= _spelled({t: key for t, key in ours.items() if t not in pairs}, theirs, roles, draft_tokenizer)
        unknown = draft_tokenizer.unk_token_id if draft_tokenizer.unk_token_id is not None else min(theirs)
        rows = [spelt.get(t, [])[-LONGEST:] or [unknown] for t in range(target)]
        longest = max(map(len, rows))
        return VocabularyMap(
            torch.tensor([pairs.get(t, -1) for t in range(target)], device="cpu"),
            torch.tensor([row + [-1] * (longest - len(row)) for row in rows], device="cpu"),
            torch.tensor([len(row) for row in rows], device="cpu"),
            draft,
        )

    def to(self, device: torch.device) -> "VocabularyMap":
        """The same tables on a device."""
        if self.length.device == device:
            return self
        tables = (self.draft_of.to(device), self.spelling.to(device), self.length.to(device))
        return replace(self, draft_of=tables[0], spelling=tables[1], length=tables[2])

    @property
    def longest(self) -> int:
        """Pieces of the longest spelling."""
        return self.spelling.shape[1]

    @property
    def shared(self) -> float:
        """Share of the target's ids that can be drafted."""
        return float((self.draft_of >= 0).float().mean())

    def logits(self, values: Tensor) -> Tensor:
        """Scores `[…, draft]` over the draft model's ids as `[…, target]`; -inf where no token is the same."""
        return values.index_select(-1, self.draft_of.clamp(min=0)).masked_fill(self.draft_of < 0, -torch.inf)


def _keys(tokenizer: Any, size: int) -> dict[int, Key]:
    """Kind and bytes of every token of a vocabulary that the model has a row for."""
    added = {i: token.special for i, token in tokenizer.added_tokens_decoder.items()}
    tokens = {i: token for token, i in tokenizer.get_vocab().items() if i < size}
    plain = [token for i, token in tokens.items() if i not in added]
    byte_level = sum("Ġ" in token for token in plain) > sum("▁" in token for token in plain)
    alphabet = _alphabet() if byte_level else None
    return {i: _key(token, added.get(i), alphabet) for i, token in tokens.items()}


def _alphabet() -> dict[str, int]:
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    return {character: byte for byte, character in bytes_to_unicode().items()}


def _key(token: str, special: bool | None, alphabet: Mapping[str, int] | None) -> Key:
    """`special` is None for tokens of the model itself, which are written in its alphabet; others are plain text."""
    if match := _BYTE.fullmatch(token):
        return "byte", bytes.fromhex(match[1])
    if special is not None:
        return ("special" if special else "text"), token.encode()
    if alphabet is None:
        return "text", token.replace("▁", " ").encode()
    return "text", b"".join(bytes([alphabet[c]]) if c in alphabet else c.encode() for c in token)


def _roles(target_tokenizer: Any, draft_tokenizer: Any, target: int, draft: int) -> dict[int, int]:
    """Special tokens of one role: the end comes first, as it may be padding or begin, too."""
    roles: dict[int, int] = {}
    for role in ROLES:
        ours, theirs = getattr(target_tokenizer, role, None), getattr(draft_tokenizer, role, None)
        if ours is not None and theirs is not None and ours < target and theirs < draft:
            roles.setdefault(ours, theirs)
    return roles


def _paired(ours: Mapping[int, Key], theirs: Mapping[int, Key], roles: Mapping[int, int]) -> dict[int, int]:
    """Target id to draft id, one to one: the same kind and bytes; then by role; then the same bytes of text."""
    exact = {key: i for i, key in sorted(theirs.items(), reverse=True)}
    pieces = _bytes(theirs)
    pairs: dict[int, int] = {}
    taken: set[int] = set()
    same = {i: exact[key] for i, key in ours.items() if key in exact}
    alike = {i: pieces[content] for i, (kind, content) in ours.items() if kind != "special" and content in pieces}
    for found in (same, roles, alike):
        for i, j in sorted(found.items()):
            if i not in pairs and j not in taken:
                pairs[i] = j
                taken.add(j)
    return pairs


def _bytes(keys: Mapping[int, Key]) -> dict[bytes, int]:
    """Ids by bytes; byte tokens where nothing else spells them."""
    order = sorted(keys.items(), key=lambda item: (item[1][0] == "text", -item[0]))
    return {content: i for i, (kind, content) in order if kind != "special" and content}


def _spelled(
    missing: Mapping[int, Key], theirs: Mapping[int, Key], roles: Mapping[int, int], tokenizer: Any
) -> dict[int, list[int]]:
    """Draft ids for target ids that have no partner: as the draft tokenizer spells them, if that keeps the bytes."""
    pieces = _bytes(theirs)
    texts = {i: content.decode(errors="replace") for i, (_, content) in missing.items() if content}
    how = {"add_special_tokens": False, "return_attention_mask": False}
    encoded = tokenizer(list(texts.values()), **how)["input_ids"] if texts else []
    spelt = {}
    for i, ids in zip(texts, encoded, strict=True):
        content = missing[i][1]
        kept = b"".join(theirs[j][1] if j in theirs else b"" for j in ids) == content
        spelt[i] = ids if kept else _fewest(content, pieces)
    return spelt | {i: [roles[i]] for i in missing if i in roles}


def _fewest(content: bytes, pieces: Mapping[bytes, int]) -> list[int]:
    """The fewest ids whose bytes are `content`; none where that cannot be. For what tokenizers would not take apart."""
    best: list[list[int] | None] = [[]]
    for end in range(1, len(content) + 1):
        ways = [
            [*before, pieces[content[start:end]]]
            for start, before in enumerate(best)
            if before is not None and content[start:end] in pieces
        ]
        best.append(min(ways, key=len, default=None))
    return best[-1] or []
