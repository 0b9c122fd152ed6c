"""A small draft model for a target, distilled from it: the same tokenizer, a Llama of a few layers."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM

from mmspec.training.loop import fit
from mmspec.training.losses import DraftLoss, TokenFilter, acceptance
from mmspec_text.training.batch import Batch
from mmspec_text.training.model_loss import model_loss
from mmspec_text.training.teacher import Teacher
from mmspec_text.training.trained import Trained, Training, token_filter

WIDTH, LAYERS = 3, 4
"""The target's hidden width and its layers over the draft model's, about."""
HEAD = 32
"""Numbers of an attention head."""


def new_draft_model(model: Any, seed: int) -> LlamaForCausalLM:
    """A draft model before training."""
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
    teacher = Teacher(model)

    def new() -> LlamaForCausalLM:
        made: LlamaForCausalLM = new_draft_model(model, recipe.seed).to(model.device)
        return made

    def loss_of(loss: DraftLoss, chosen: TokenFilter | None = None) -> Callable[[Any, Batch], Tensor]:
        return model_loss(teacher, loss, chosen, recipe.drafter_share, recipe.temperature)

    student, hidden = new(), "model.layers"
    loss = loss_of(recipe.draft_loss, token_filter(of, new, loss_of, hidden))
    fit(student, of.texts.batch_at, loss, recipe.loop(hidden), of.work, of.say)
    found = {kind: _measured(student, teacher, windows.to(model.device)) for kind, windows in of.held.items()}

    def write(folder: Path) -> None:
        half = type(student)(student.config).half()
        half.load_state_dict(student.state_dict())
        half.save_pretrained(folder)
        of.tokenizer.save_pretrained(folder)

    return Trained(write, {"parameters": sum(p.numel() for p in student.parameters()), "held_out": found})


@torch.no_grad()
def _measured(student: Any, teacher: Teacher, windows: Batch) -> dict[str, float]:
    """Nats per token of held-out sequences, and α, the share of sampled drafts of one unit that an exact rule takes.

    Both behind the units that count.
    """
    nats, alpha = [], []
    for one in windows.apart():
        logits, counted = student(one.ids, use_cache=False).logits, one.counted
        known = counted[:, :-1]
        nats.append(float(cross_entropy(logits[:, :-1][known].float(), one.ids[:, 1:][known])))
        alpha.append(float(acceptance(logits, teacher(one.ids)[1].softmax(-1))[counted].mean()))
    return {"nats_per_token": round(sum(nats) / len(nats), 4), "accepted": round(sum(alpha) / len(alpha), 4)}
