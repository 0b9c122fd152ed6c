"""Models that can be left early: behind some of their layers, their own norm and output layer say the next unit, too.

`sorted`: a draft model of the target's first layers, by sorted fine-tuning (S2D: Kavehzadeh et al., arXiv 2407.01955):
the mean of the losses at its exits, which are a half, three quarters and all of its layers.

`layer-skip`: the target itself, trained further (LayerSkip: Elhoushi et al., arXiv 2404.16710), for the methods
`layer-skip` and `del`. Layer l of L, counted from 0, is left out for a sequence with probability
p · (2 ** (l / (L - 1)) - 1), p being the recipe's `dropout`. The exit behind n layers weighs Σ i for i ≤ n, early ones
times `exit_scale`, divided by the sum of the step's weights: as in the authors' release in torchtune. Of the early
exits a step has every `rotation`-th, which moves on by one from step to step; the last one it has always. The paper's
dropout that grows with time, and its gradual curriculum, are for models that begin anew.

Both learn the text's next unit, as in the papers, or the target's distribution (the recipe's `loss`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from mmspec.hosts.draft_models import own_target
from mmspec.hosts.features import Reading
from mmspec.hosts.model_info import ModelInfo
from mmspec.training.loop import fit
from mmspec.training.losses import DraftLoss, acceptance, draft_loss
from mmspec_text.training.draft_model import write_model
from mmspec_text.training.recipe import DrafterRecipe
from mmspec_text.training.teacher import Teacher
from mmspec_text.training.texts import Batch
from mmspec_text.training.trained import Trained, Training

Weights = Callable[[int], Mapping[int, float]]
"""From a step to the weight in it of each exit, named by its layers; the last one is among them."""


def begun_sorted(model: Any, recipe: DrafterRecipe) -> Any:
    """A model of the target's first layers, before its training; refuses a target that has no such part."""
    count = len(own_target(model).model_info.language.layers)
    layers, config = min(recipe.layers, count), deepcopy(model.config)
    text, kind = config.get_text_config(decoder=True), type(model)
    for name, value in list(vars(text).items()):
        if isinstance(value, list) and len(value) == count:  # an entry for every layer
            setattr(text, name, value[:layers])
    text.num_hidden_layers, config.sorted_exits = layers, list(sorted_exits(layers))
    try:
        student = kind(config)
        own = student.state_dict()
        student.load_state_dict({key: value for key, value in model.state_dict().items() if key in own})
    except (RuntimeError, TypeError, ValueError) as error:
        raise ValueError(f"{kind.__name__} has no part of its first {layers} layers: train --kind model") from error
    return _early(student.to(model.device))


def begun_layer_skip(model: Any, recipe: DrafterRecipe) -> Any:
    """A copy of the target, before it is trained further."""
    return _early(deepcopy(model))


def _early(student: Any) -> Any:
    """A model that learns; refuses one whose exits would not be those of the methods that leave it early."""
    student.float().requires_grad_(True).eval()
    info, kind = own_target(student).model_info, type(student).__name__
    count = len(info.language.layers)
    if info.ops:
        raise ValueError(
            f"{kind} has recurrent layers, and methods that leave a model early draft with attention alone"
        )
    if count < 2:
        raise ValueError(f"{kind} has one layer, and is not left early")
    ids = torch.tensor([[0, 1]], device=student.device)
    with torch.no_grad(), Reading(info, (count,)) as reading:
        whole = student(input_ids=ids, use_cache=False).logits
    if not torch.allclose(_said(info, reading.seen[count][0]), whole, rtol=1e-3, atol=1e-3):
        raise ValueError(f"{kind} scores its states otherwise than by its norm and its output layer")
    return student


def _said(info: ModelInfo, states: Tensor) -> Tensor:
    """The logits of a model that is left with these states."""
    said: Tensor = info.model.get_output_embeddings()(info.language.final_norm(states))
    return said


def sorted_exits(layers: int) -> tuple[int, ...]:
    """A half, three quarters and all of so many layers, at least two."""
    return tuple(sorted({max(1, layers // 2), max(1, layers - layers // 4), layers}))


def layer_skip_weights(layers: int, scale: float, rotation: int, step: int) -> dict[int, float]:
    """The weight of each exit in a step."""
    early = (exit for exit in range(1, layers) if (exit - 1 - step) % rotation == 0)
    raw = {exit: scale * exit * (exit + 1) / 2 for exit in early} | {layers: layers * (layers + 1) / 2}
    total = sum(raw.values())
    return {exit: weight / total for exit, weight in raw.items()}


def dropout_rates(layers: int, most: float) -> list[float]:
    """The probability that each layer is left out: 0 for the first one, `most` for the last."""
    return [most * (2 ** (layer / (layers - 1)) - 1) for layer in range(layers)]


def exit_scores(info: ModelInfo, ids: Tensor, exits: Sequence[int]) -> dict[int, Tensor]:
    """Logits `[sequence, unit, vocab]` behind so many layers, all of them last."""
    early = tuple(exits)[:-1]
    with Reading(info, early) as reading:
        whole = info.model(input_ids=ids, use_cache=False).logits
    return {exit: _said(info, reading.seen[exit][0]) for exit in early} | {exits[-1]: whole}


@contextmanager
def layers_dropped(info: ModelInfo, rates: Sequence[float], batch: Batch) -> Iterator[None]:
    """A block whose passes over a batch leave out layers, each for its own sequences, as a function of the batch."""
    g = torch.Generator().manual_seed(batch.seed)
    gone = (torch.rand(len(rates), len(batch.ids), generator=g) < torch.tensor(rates)[:, None]).to(batch.ids.device)

    def hook(rows: Tensor, layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        given = args[0] if args else kwargs["hidden_states"]
        made, *others = output if isinstance(output, tuple) else (output,)
        states = torch.where(rows[:, None, None], given, made)
        return (states, *others) if isinstance(output, tuple) else states

    with ExitStack() as undo:
        for layer, rows in zip(info.language.layers, gone, strict=True):
            if bool(rows.any()):
                undo.callback(layer.register_forward_hook(partial(hook, rows), with_kwargs=True).remove)
        yield


def exit_loss(
    info: ModelInfo, teacher: Teacher, loss: DraftLoss, weights: Weights, rates: Sequence[float]
) -> Callable[[Any, tuple[int, Batch]], Tensor]:
    """The loss of a model with exits on a step's number and its batch: of all exits of the step, by their weights."""

    def of(student: Any, given: tuple[int, Batch]) -> Tensor:
        step, batch = given
        shares = weights(step)
        with layers_dropped(info, rates, batch):
            scores = exit_scores(info, batch.ids, tuple(shares))
        total, mask = torch.zeros((), device=batch.ids.device), batch.counted[:, :-1]
        asked = loss.kind != "hard" and loss.hard < 1
        p = teacher(batch.ids)[1][:, :-1].softmax(-1) if asked else mask.float()  # which the text's units do not need
        for exit, share in shares.items():
            total = total + share * draft_loss(scores[exit][:, :-1], p, mask, 0, loss, batch.ids[:, 1:])
        return total

    return of


def trained_sorted(of: Training) -> Trained:
    """Train a draft model of the target's first layers."""
    student = begun_sorted(of.model, of.recipe)
    exits = sorted_exits(len(own_target(student).model_info.language.layers))
    return _trained(of, student, exits, lambda step: dict.fromkeys(exits, 1 / len(exits)), 0.0, Teacher(of.model))


def trained_layer_skip(of: Training) -> Trained:
    """Train the target further. Its own last exit is what drafts are compared with."""
    student, recipe = begun_layer_skip(of.model, of.recipe), of.recipe
    layers = len(own_target(student).model_info.language.layers)
    weights = partial(layer_skip_weights, layers, recipe.exit_scale, recipe.rotation)
    return _trained(of, student, tuple(range(1, layers + 1)), weights, recipe.dropout, None)


def _trained(
    of: Training, student: Any, exits: Sequence[int], weights: Weights, dropout: float, judge: Teacher | None
) -> Trained:
    """Train a model with exits, and count at all of them; `judge` has the distribution that drafts are compared with,
    or the model itself.
    """
    info, recipe = own_target(student).model_info, of.recipe
    rates = dropout_rates(len(info.language.layers), dropout)
    loss = exit_loss(info, Teacher(of.model), recipe.draft_loss, weights, rates)
    count = sum(p.numel() for p in student.parameters())
    of.say(f"{count:,} parameters, up to {16 * count / 1e9:.1f} GB while they learn; {recipe.steps} steps")
    fit(student, lambda number: (number, of.texts.batch_at(number)), loss, recipe.loop(None), of.work, of.say)
    found = {name: measured_exits(info, exits, held.to(student.device), judge) for name, held in of.held.items()}
    return Trained(
        partial(write_model, student, of.tokenizer), {"parameters": count, "exits": list(exits), "held_out": found}
    )


@torch.no_grad()
def measured_exits(
    info: ModelInfo, exits: Sequence[int], texts: Batch, judge: Teacher | None
) -> dict[str, list[float]]:
    """Nats per token of held-out sequences, and α, the share of sampled drafts of one unit that an exact rule takes: of
    every exit, behind the units that count.
    """
    nats, alpha = [], []
    for one in texts.apart():
        scores, counted, known = exit_scores(info, one.ids, exits), one.counted, one.counted[:, :-1]
        p = (scores[exits[-1]].float() if judge is None else judge(one.ids)[1]).softmax(-1)
        right = one.ids[:, 1:][known]
        nats.append([float(cross_entropy(scores[exit][:, :-1][known].float(), right)) for exit in exits])
        alpha.append([float(acceptance(scores[exit], p)[counted].mean()) for exit in exits])
    means = (torch.tensor(each).mean(0).tolist() for each in (nats, alpha))
    return dict(zip(("nats_per_token", "accepted"), ([round(x, 4) for x in mean] for mean in means), strict=True))
