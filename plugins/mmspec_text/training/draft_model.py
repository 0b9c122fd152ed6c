"""A small draft model for a target, distilled from it: one that exists, or a new Llama of a few layers.

Its loss compares its distribution behind every unit of a text with the target's. On-policy data of DistillSpec (arXiv
2310.08461, algorithm 1): of a share λ of the sequences the end is sampled from the draft model of that step, and the
loss compares it with the target behind the units that it wrote. So it learns what it will be asked about.
"""

from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerBase

from mmspec.hosts.draft_models import drafting_target, own_target, refuse_other_tokenizer
from mmspec.training.losses import DraftLoss, TokenFilter, acceptance, draft_loss
from mmspec_text.training.recipe import DrafterRecipe
from mmspec_text.training.teacher import Teacher
from mmspec_text.training.texts import Batch, prompts_of
from mmspec_text.training.trained import Trained, Training, fit_drafter
from mmspec_text.training.written import GIVEN, answered

WIDTH, LAYERS = 3, 4
"""The target's hidden width and its layers over the draft model's, about."""
HEAD = 32
"""Numbers of an attention head."""
FAR = 131_072
"""The longest text of a draft model whose target reads texts of any length."""


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
        max_position_embeddings=own_target(model).context or FAR,
        tie_word_embeddings=True,
    )
    torch.manual_seed(seed)
    return LlamaForCausalLM(LlamaConfig(**sizes, **ends))


def begun_model(model: Any, recipe: DrafterRecipe) -> Any:
    """A draft model before its training: the one that the recipe names, or a new one."""
    given = recipe.draft_model
    student = new_draft_model(model, recipe.seed) if given is None else loaded(given, model)
    return student.to(model.device).requires_grad_(True)


def loaded(name: str, model: Any) -> Any:
    """The draft model of a name, for a target."""
    small, target = drafting_target(name), own_target(model)
    refuse_other_tokenizer(small, target)
    if small.vocab != target.vocab:
        raise ValueError(
            f"the draft model {name!r} has {small.vocab} ids, and the target {target.vocab}: only one of the target's "
            "own tokens and as many ids learns from it"
        )
    return small.model


def trained_model(of: Training) -> Trained:
    """Train a draft model."""
    model, recipe = of.model, of.recipe
    teacher = Teacher(model)
    how: dict[str, Any] = {"drafter_share": recipe.drafter_share, "temperature": recipe.temperature}
    student, given = begun_model(model, recipe), recipe.reference
    reference = None if given is None else loaded(given, model).to(model.device)
    # What is trained already goes on by small steps of AdamW
    hidden = "model.layers" if recipe.draft_model is None else None
    new = partial(begun_model, model, recipe)
    fit_drafter(of, student, new, partial(model_loss, teacher, **how), hidden, reference)
    found = {kind: measured(student, teacher, windows.to(model.device)) for kind, windows in of.held.items()}

    facts = {"parameters": sum(p.numel() for p in student.parameters()), "held_out": found}
    return Trained(partial(write_model, student, of.tokenizer), facts)


def write_model(student: Any, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write a draft model in float16, with its tokenizer, into a folder; the live one is unchanged."""
    half = type(student)(deepcopy(student.config)).half()
    half.load_state_dict(student.state_dict())
    rope = student.config.to_dict().get("rope_parameters") or {}
    if "rope_theta" in rope:  # where readers of transformers 4's files look for it
        half.config.rope_theta = rope["rope_theta"]
    half.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


@torch.no_grad()
def measured(student: Any, teacher: Teacher, windows: Batch) -> dict[str, float]:
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


def model_loss(
    teacher: Teacher,
    loss: DraftLoss,
    chosen: TokenFilter | None = None,
    drafter_share: float = 0.0,
    temperature: float = 1.0,
) -> Callable[[Any, Batch], Tensor]:
    """The loss of a draft model on a batch.

    `chosen` chooses units among those that count. The draft model ends a share of the sequences itself (`rewritten`).
    """

    def of(student: Any, batch: Batch) -> Tensor:
        batch, units = rewritten(student, batch, drafter_share, temperature)
        p, mask = teacher(batch.ids)[1][:, :-1].softmax(-1), batch.counted[:, :-1]
        logits = student(batch.ids, use_cache=False).logits[:, :-1]
        if chosen is not None:
            with torch.no_grad():
                other = chosen.reference(batch.ids, use_cache=False).logits[:, :-1]
            mask = chosen.kept(logits, other, p, mask)
        return draft_loss(logits, p, mask, 0, loss, units[:, 1:])

    return of


def rewritten(student: Any, batch: Batch, share: float, temperature: float) -> tuple[Batch, Tensor]:
    """A batch with other ends: of a conversation the whole answer, of a text what is behind its first units. It is a
    function of the weights and the batch alone.

    `share` is λ, the probability that a sequence is one of them; temperature 0 is greedy. Second are the units
    `[sequence, unit]` for a loss on the text itself, -1 where the draft model wrote: its own text is no example.
    """
    g = torch.Generator().manual_seed(batch.seed)
    chosen = torch.rand(len(batch.ids), generator=g) < share
    if not chosen.any():
        return batch, batch.ids
    cuts, examples = [], []
    where = chosen.nonzero()[:, 0].tolist()
    given = [_given(counted) for counted in batch.counted.cpu()]
    prompts = prompts_of([batch.ids[row, : given[row]].cpu() for row in where])
    room = batch.ids.shape[1] - min(given[row] for row in where)
    how: Any = {"new": room, "temperature": temperature, "seed": batch.seed}
    written = dict(zip(where, answered(student, prompts, **how), strict=True))
    for row, (ids, counted) in enumerate(zip(batch.ids.cpu(), batch.counted.cpu(), strict=True)):
        if row in written:
            ids, counted = written[row].ids[: len(ids)], written[row].counted[: len(ids)]
        cuts.append((ids, counted))
        examples.append((torch.full_like(ids, -1) if row in written else ids, counted))
    least = batch.ids.shape[1]
    new, own = Batch.padded(cuts, batch.seed, least), Batch.padded(examples, batch.seed, least)
    return new.to(batch.ids.device), own.ids.to(batch.ids.device)


def _given(counted: Tensor) -> int:
    first = int(counted.int().argmax())
    return first + 1 if first else min(GIVEN, len(counted) // 2)
