"""What the target writes, as a further source; it is kept in the work folder, so that a run resumes with it."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import PreTrainedTokenizerBase

from mmspec.training.work import cached
from mmspec_text.training.answers import Answers, of_sheet, sheet
from mmspec_text.training.batch import Batch
from mmspec_text.training.data import Data, halves, held_apart
from mmspec_text.training.recipe import DrafterRecipe
from mmspec_text.training.texts import Source, Stream
from mmspec_text.training.written import CONTINUED, answered, continued, questions

OWN = "what the target wrote"


def with_own(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    data: Data,
    recipe: DrafterRecipe,
    reach: int | None,
    work: Path,
    say: Callable[[str], None],
) -> tuple[list[Source], Mapping[str, Batch]]:
    """The sources, with what the target writes; and the held-out sequences.

    Args:
        model: The target.
        tokenizer: Its tokenizer.
        data: What there is without it.
        recipe: Lengths and shares.
        reach: Units that the target reads at most, or None.
        work: The work folder.
        say: Receives lines of progress.
    """
    if not len(data.prompts):
        return list(data.sources), data.held
    say(f"the target writes {len(data.prompts)} {'texts' if data.writes == 'text' else 'answers'}")
    others, mixed = sum(source.share for source in data.sources), recipe.own_share < 1
    share = recipe.own_share * others / (1 - recipe.own_share) if others and mixed else 1.0
    own, held = _own(model, tokenizer, data, recipe, reach, work, share)
    return ([*data.sources, own] if mixed else [own]), held


def _own(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    data: Data,
    recipe: DrafterRecipe,
    reach: int | None,
    work: Path,
    share: float,
) -> tuple[Source, Mapping[str, Batch]]:
    """What the target writes; and the held-out sequences, which are of it if there are no others."""

    def room(prompts: Tensor) -> int:
        return CONTINUED if reach is None else min(CONTINUED, reach - prompts.shape[1])

    how, prompts, file = (recipe.temperature, recipe.seed), data.prompts, work / "generated.pt"
    if data.writes == "text":
        own = cached(file, (prompts,), lambda: continued(model, prompts, room(prompts), *how))
        if data.held:
            return Stream(own, share), data.held
        own, windows = halves(own, recipe.context, OWN)
        return Stream(own, share), {"own": Batch.whole(windows)}
    if data.writes == "questions":
        new, most = room(prompts) // 4, None if reach is None else reach // 2

        def asked() -> Tensor:
            return questions(model, tokenizer, data.prompts, new, *how, most, data.template)

        prompts = cached(work / "questions.pt", (data.prompts,), asked)
    rows = of_sheet(cached(file, (prompts,), lambda: sheet(answered(model, prompts, room(prompts), *how))))
    if data.held:
        return Answers(rows, share), data.held
    rows, last = held_apart([[row] for row in rows], recipe.context, OWN)
    return Answers(rows, share), {"own": last}
