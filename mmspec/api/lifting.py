"""Work of transformers' logits processors that the decoder does instead: guidance, known units.

transformers guides with a processor that runs the model on the unconditional prompt, one unit after the other, in a
cache of its own: no draft can be verified with it. Both prompts as halves of one batch give the same scores (without
processors behind it, up to a constant per unit, which no distribution shows).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import (
    GenerationConfig,
    PrefixConstrainedLogitsProcessor,
    UnbatchedClassifierFreeGuidanceLogitsProcessor,
)

from mmspec.core.decoder import Decoder
from mmspec.core.guided import NULL_INPUTS, TakesNull
from mmspec.core.known_units import KnowsUnits, OnlyAllowed
from mmspec.core.processors import is_elementwise


def lifted_guidance(
    decoder: Decoder, ids: Tensor, processors: Sequence[Any], config: GenerationConfig, extra: Mapping[str, Any]
) -> tuple[Sequence[Any], dict[str, Any], float | None]:
    """Take guidance out of a prepared call's processors, where the decoder's target can do it; returns the processors
    that are left, the arguments with the unconditional prompt, and the scale (None: nothing was taken out).

    `ids` is the prompt, `[batch, prompt]`. Guidance is the first of the prepared processors, or not among them. Calls
    that return scores or caches keep their processors.
    """
    first: Any = next(iter(processors), None)
    unchanged = processors, dict(extra), None
    if type(first) is not UnbatchedClassifierFreeGuidanceLogitsProcessor or config.return_dict_in_generate:
        return unchanged
    context = first.unconditional_context
    if not context["first_pass"] or not isinstance(decoder.target, TakesNull):
        return unchanged
    null_ids, mask = context["input_ids"], context["attention_mask"]
    null_ids = ids[:, -1:] if null_ids is None else null_ids.to(ids.device)
    mask = torch.ones_like(null_ids) if mask is None else mask.to(ids.device)
    # An empty mapping says that there are no pictures; the prompt is ids alone.
    inputs = {name: value for name, value in extra.items() if not (isinstance(value, Mapping) and not value)}
    null = {"input_ids": null_ids, "attention_mask": mask}
    if not decoder.target.takes_null({**inputs, "input_ids": ids}, null):
        return unchanged
    return list(processors)[1:], {**inputs, NULL_INPUTS: null}, float(first.guidance_scale)


def lifted_constraint(
    ids: Tensor, processors: Sequence[Any], config: GenerationConfig, vocab: int | None
) -> tuple[Sequence[Any], Tensor | None]:
    """Take a constraint that is data out of a prepared call's processors; returns the processors, of which one lets the
    allowed ids pass, and the known units.

    `ids` is the prompt, `[batch, prompt]`; `vocab` is the number of the model's ids, if it is known. Nothing is taken
    out (None) of calls that return scores or go on behind the units that the constraint knows, and where a processor
    behind the constraint may forbid one of these units.
    """
    for place, processor in enumerate(processors):
        if type(processor) is not PrefixConstrainedLogitsProcessor or config.return_dict_in_generate:
            continue
        known = processor._prefix_allowed_tokens_fn
        if not isinstance(known, KnowsUnits) or known.prompt != ids.shape[1]:
            continue
        whole = config.max_length - known.prompt <= len(known.forced)
        if whole and _stand(known.forced.to(ids.device), processors[place + 1 :], vocab):
            only = OnlyAllowed(known, known.allowed.to(ids.device))
            return [*processors[:place], only, *processors[place + 1 :]], known.forced
    return processors, None


def _stand(forced: Tensor, processors: Sequence[Any], vocab: int | None) -> bool:
    """True if known units keep all mass under the processors that follow their constraint, of which none may read the
    history; scores `[id, vocab]` that leave one of the ids `forced [units]` each go through them.
    """
    known = forced[forced >= 0].unique()[:, None]
    if vocab is None or bool((known >= vocab).any()) or not all(map(is_elementwise, processors)):
        return False
    scores = torch.full((len(known), vocab), -torch.inf, device=known.device).scatter_(1, known, 0.0)
    for processor in processors:
        scores = processor(known, scores)
    return bool((scores.softmax(-1).gather(1, known) == 1).all())
