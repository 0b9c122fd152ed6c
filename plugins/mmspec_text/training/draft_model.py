"""A small draft model for a target, distilled from it: the same tokenizer, a Llama of a few layers."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from mmspec.training.loop import fit
from mmspec.training.losses import acceptance, draft_loss, next_token
from mmspec_text.training.teacher import Teacher
from mmspec_text.training.trained import Trained, Training

WIDTH, LAYERS = 3, 4
"""The target's hidden width and its layers over the draft model's, about."""
HEAD = 32
"""Numbers of an attention head."""


def new_draft_model(model: Any, seed: int) -> LlamaForCausalLM:
    """A draft model before training.

    Args:
        model: The target.
        seed: Of the random weights.
    """
    config = model.config.get_text_config(decoder=True)
    heads = max(2, config.hidden_size // WIDTH // HEAD // 2 * 2)
    ends = {name: getattr(config, name, None) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    sizes: Mapping[str, Any] = dict(
        vocab_size=config.vocab_size,
        hidden_size=heads * HEAD,
        intermediate_size=3 * heads * HEAD,
        num_hidden_layers=max(1, config.num_hidden_layers // LAYERS),
        num_attention_heads=heads,
        num_key_value_heads=heads // 2,
        max_position_embeddings=config.max_position_embeddings,
        tie_word_embeddings=True,
    )
    torch.manual_seed(seed)
    return LlamaForCausalLM(LlamaConfig(**sizes, **ends))


def trained_model(of: Training) -> Trained:
    """Train a draft model."""
    model, recipe = of.model, of.recipe
    teacher, student = Teacher(model), new_draft_model(model, recipe.seed).to(model.device)
    loss = recipe.draft_loss

    def loss_of(student: Any, ids: Tensor) -> Tensor:
        p, units = teacher(ids)[1][:, :-1].softmax(-1), ids[:, 1:]
        logits = student(ids, use_cache=False).logits[:, :-1]
        return draft_loss(logits, p, torch.ones_like(units, dtype=torch.bool), 0, loss, units)

    fit(student, of.texts.batch_at, loss_of, recipe.loop("model.layers"), of.work, of.say)
    found = {kind: _measured(student, teacher, windows.to(model.device)) for kind, windows in of.held.items()}

    def write(folder: Path) -> None:
        half = type(student)(student.config).half()
        half.load_state_dict(student.state_dict())
        half.save_pretrained(folder)
        of.tokenizer.save_pretrained(folder)

    return Trained(write, {"parameters": sum(p.numel() for p in student.parameters()), "held_out": found})


@torch.no_grad()
def _measured(student: Any, teacher: Teacher, windows: Tensor) -> dict[str, float]:
    """Nats per token of held-out windows, and α, the share of sampled drafts of one unit that an exact rule takes."""
    nats, alpha = 0.0, 0.0
    for ids in windows.split(1):
        logits = student(ids, use_cache=False).logits
        nats += float(next_token(logits, ids))
        alpha += float(acceptance(logits, teacher(ids)[1].softmax(-1)).mean())
    return {"nats_per_token": round(nats / len(windows), 4), "accepted": round(alpha / len(windows), 4)}
