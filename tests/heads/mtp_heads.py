"""Multi-token layers of random weights for the Llama of seven tokens, and their forward written out."""

import copy
from functools import cache

import torch
from torch import Tensor

from mmspec.hosts.model_info import ModelInfo
from mmspec.testing.tiny_models import llama
from mmspec_text.drafters.heads.mtp.checkpoint import MtpCheckpoint
from mmspec_text.drafters.heads.mtp.family import DEEPSEEK, ERNIE, MIMO
from tests.support.examples.heads import random_layers as random_checkpoint
from tests.support.mtp_forward import Flags, WrittenOut

HEADS = {
    "one": (MIMO, 1, Flags(hidden_first=True, zeroed=True)),
    "two": (DEEPSEEK, 2, Flags()),
    "three": (DEEPSEEK, 3, Flags()),
    "without-a-norm": (ERNIE, 1, Flags(zeroed=True, final=False)),
}
"""Name → family, depths, and what the forward computes."""


@cache
def checkpoint(name: str) -> MtpCheckpoint:
    family, depths, _ = HEADS[name]
    return random_checkpoint(ModelInfo.of(llama()), family, depths)


@cache
def written_out(name: str) -> WrittenOut:
    _, depths, flags = HEADS[name]
    stored, blocks = checkpoint(name), []
    for depth in range(depths):
        block = copy.deepcopy(llama().model.layers[0])
        block.self_attn.config = copy.deepcopy(llama().config)
        block.self_attn.config._attn_implementation = "eager"
        start = f"layers.{depth}."
        kept = {key.removeprefix(start): value for key, value in stored.blocks.items() if key.startswith(start)}
        block.load_state_dict(kept)
        blocks.append(block)
    return WrittenOut(llama(), blocks, stored.own, flags)


def expected(name: str, known: Tensor, path: list[int]) -> Tensor:
    """Log probabilities behind a path of drafted units, and behind each prefix of it: `[len(path) + 1, vocab]`."""
    return _expected(name, tuple(known.tolist()), tuple(path))


@cache
def _expected(name: str, known: tuple[int, ...], path: tuple[int, ...]) -> Tensor:
    logits = written_out(name).draft_logits(_features(known), known[1:], path)
    return torch.stack(logits).double().log_softmax(-1)


@cache
def _features(known: tuple[int, ...]) -> Tensor:
    """The target's states behind its final norm, by transformers' own record."""
    with torch.no_grad():
        out = llama()(input_ids=torch.tensor([known[:-1]]), output_hidden_states=True, use_cache=False)
    states: Tensor = out.hidden_states[-1][0]
    return states
