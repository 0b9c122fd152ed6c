"""A map between two vocabularies, for draft models with another tokenizer or another padded size.

Token-level intersection (TLI, Timor et al., arXiv 2502.05202): tokens that stand for the same bytes in both
vocabularies are mapped, and only they are drafted. Byte-level alphabets ("Ġthe"), sentencepiece ("▁the") and byte
tokens (<0x0A>) are converted to bytes first; special tokens are mapped by content, or by role (end, begin, padding). A
target token without a partner is context only, and is spelled in several draft tokens.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

LONGEST = 8  # the most draft tokens that spell one token of the target; of longer spellings the end is kept

ALIKE = 0.99
"""The least share of ids with the same token in two tokenizers that are said to be one; a few tokens may be added."""

ROLES = ("eos_token_id", "bos_token_id", "pad_token_id")

Key = tuple[str, bytes]  # the kind (`text`, `byte`, `special`) and the content of a token
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True)
class VocabularyMap:
    """A map from the target's ids to the draft model's."""

    draft_of: Tensor  # `[target]` int64: the draft id of the same token, or -1. No draft id occurs twice.
    spelling: Tensor  # `[target, longest]` int64: the draft ids that spell the token, padded with -1 on the right
    length: Tensor  # `[target]` int64: the number of these ids, at least 1
    draft_vocab: int  # the size of the draft model's vocabulary

    @staticmethod
    def padded(target: int, draft: int, tokens: int | None = None) -> "VocabularyMap":
        """A map for one tokenizer whose vocabulary two models padded to different sizes; ids from `tokens` on, if it is
        known, are padding and are not mapped.
        """
        ids = torch.arange(target, device="cpu")
        draft_of = torch.where(ids < min(draft, target if tokens is None else tokens), ids, -1)
        return VocabularyMap(draft_of, draft_of.clamp(min=0)[:, None], torch.ones_like(ids), draft)

    @staticmethod
    def between(target_tokenizer: Any, draft_tokenizer: Any, target: int, draft: int) -> "VocabularyMap":
        """A map for two tokenizers; padded ids are never drafted."""
        words = target_tokenizer.get_vocab()
        tokens = max(words.values(), default=-1) + 1
        if tokens <= min(target, draft) and words == draft_tokenizer.get_vocab():
            return VocabularyMap.padded(target, draft, tokens)
        target_keys, draft_keys = _keys(target_tokenizer, target), _keys(draft_tokenizer, draft)
        roles = _roles(target_tokenizer, draft_tokenizer, target, draft)
        pairs = _paired(target_keys, draft_keys, roles)
        if not pairs:
            raise ValueError("the two tokenizers have no token in common, so the draft model cannot draft a single one")
        spelt = {t: [d] for t, d in pairs.items()}
        missing = {t: key for t, key in target_keys.items() if t not in pairs}
        spelt |= _spelled(missing, draft_keys, roles, draft_tokenizer)
        unknown = draft_tokenizer.unk_token_id if draft_tokenizer.unk_token_id is not None else min(draft_keys)
        rows = [spelt.get(t, [])[-LONGEST:] or [unknown] for t in range(target)]
        longest = max(map(len, rows))
        return VocabularyMap(
            torch.tensor([pairs.get(t, -1) for t in range(target)], device="cpu"),
            torch.tensor([row + [-1] * (longest - len(row)) for row in rows], device="cpu"),
            torch.tensor([len(row) for row in rows], device="cpu"),
            draft,
        )

    def to(self, device: torch.device) -> "VocabularyMap":
        """The map with its tables on a device."""
        if self.length.device == device:
            return self
        tables = (self.draft_of.to(device), self.spelling.to(device), self.length.to(device))
        return replace(self, draft_of=tables[0], spelling=tables[1], length=tables[2])

    @property
    def longest(self) -> int:
        """The number of draft ids in the longest spelling."""
        return self.spelling.shape[1]

    @property
    def shared(self) -> float:
        """The share of the target's ids that can be drafted."""
        return float((self.draft_of >= 0).float().mean())

    def logits(self, values: Tensor) -> Tensor:
        """Logits `[…, draft]` over the draft model's ids as `[…, target]`; -inf for ids without a partner."""
        return values.index_select(-1, self.draft_of.clamp(min=0)).masked_fill(self.draft_of < 0, -torch.inf)


def alike(target_tokenizer: Any, draft_tokenizer: Any) -> bool:
    """True if two tokenizers of transformers are one: the ids that both have stand for the same tokens."""
    words, own = target_tokenizer.get_vocab(), draft_tokenizer.get_vocab()
    both = [(token, i) for token, i in words.items() if i < len(own)]
    return sum(own.get(token) == i for token, i in both) >= ALIKE * len(both)


def _keys(tokenizer: Any, size: int) -> dict[int, Key]:
    """The kind and bytes of every token id below the model's vocabulary size."""
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
    """The kind and bytes of a token; `special` is None unless it was added to the tokenizer as plain text."""
    if match := _BYTE.fullmatch(token):
        return "byte", bytes.fromhex(match[1])
    if special is not None:
        return ("special" if special else "text"), token.encode()
    if alphabet is None:
        return "text", token.replace("▁", " ").encode()
    return "text", b"".join(bytes([alphabet[c]]) if c in alphabet else c.encode() for c in token)


def _roles(target_tokenizer: Any, draft_tokenizer: Any, target: int, draft: int) -> dict[int, int]:
    """Target id to draft id by role; end of text comes first, because it may also be padding or begin of text."""
    roles: dict[int, int] = {}
    for role in ROLES:
        target_id, draft_id = getattr(target_tokenizer, role, None), getattr(draft_tokenizer, role, None)
        if target_id is not None and draft_id is not None and target_id < target and draft_id < draft:
            roles.setdefault(target_id, draft_id)
    return roles


def _paired(target_keys: Mapping[int, Key], draft_keys: Mapping[int, Key], roles: Mapping[int, int]) -> dict[int, int]:
    """Target id to draft id, one to one: by kind and bytes; then by role; then by the bytes of text alone."""
    exact = {key: i for i, key in sorted(draft_keys.items(), reverse=True)}
    pieces = _bytes(draft_keys)
    pairs: dict[int, int] = {}
    taken: set[int] = set()
    same = {i: exact[key] for i, key in target_keys.items() if key in exact}
    alike = {
        i: pieces[content] for i, (kind, content) in target_keys.items() if kind != "special" and content in pieces
    }
    for found in (same, roles, alike):
        for i, j in sorted(found.items()):
            if i not in pairs and j not in taken:
                pairs[i] = j
                taken.add(j)
    return pairs


def _bytes(keys: Mapping[int, Key]) -> dict[bytes, int]:
    """Ids by their bytes; a byte token only if no text token has these bytes."""
    order = sorted(keys.items(), key=lambda item: (item[1][0] == "text", -item[0]))
    return {content: i for i, (kind, content) in order if kind != "special" and content}


def _spelled(
    missing: Mapping[int, Key], draft_keys: Mapping[int, Key], roles: Mapping[int, int], tokenizer: Any
) -> dict[int, list[int]]:
    """Draft ids for target ids without a partner: the draft tokenizer's encoding, if its bytes are the same."""
    pieces = _bytes(draft_keys)
    texts = {i: content.decode(errors="replace") for i, (_, content) in missing.items() if content}
    how = {"add_special_tokens": False, "return_attention_mask": False}
    encoded = tokenizer(list(texts.values()), **how)["input_ids"] if texts else []
    spelt = {}
    for i, ids in zip(texts, encoded, strict=True):
        content = missing[i][1]
        same_bytes = b"".join(draft_keys[j][1] if j in draft_keys else b"" for j in ids) == content
        spelt[i] = ids if same_bytes else _fewest(content, pieces)
    return spelt | {i: [roles[i]] for i in missing if i in roles}


def _fewest(content: bytes, pieces: Mapping[bytes, int]) -> list[int]:
    """The fewest ids whose bytes are `content`; [] if there are none."""
    best: list[list[int] | None] = [[]]
    for end in range(1, len(content) + 1):
        ways = [
            [*before, pieces[content[start:end]]]
            for start, before in enumerate(best)
            if before is not None and content[start:end] in pieces
        ]
        best.append(min(ways, key=len, default=None))
    return best[-1] or []
