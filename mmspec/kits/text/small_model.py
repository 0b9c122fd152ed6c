"""The small model of a drafter: loaded, and translated to the target's vocabulary if its own differs."""

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from mmspec.core.drafters.draft_model import DraftModel
from mmspec.core.drafters.shapes import Shape
from mmspec.core.protocols import Target
from mmspec.hosts.devices import device_of
from mmspec.hosts.draft_models import drafting_target, place, stored_tokenizer
from mmspec.hosts.loading import load_tokenizer
from mmspec.hosts.target import TransformersTarget
from mmspec.hosts.translated import TranslatedTarget
from mmspec.hosts.vocabulary import ROLES, VocabularyMap, alike
from mmspec.registry.options import option
from mmspec.registry.warn import warn


@dataclass(frozen=True)
class SmallModelOptions:
    """Options that say which small model drafts, and how its tokens are mapped to the target's."""

    model: Any = option(None, "the smaller model: a shipped name, a folder, a hub name or a live model")
    tokenizer: Any = option(None, "the target's tokenizer, live or a name; by default the one stored with it")
    assistant_tokenizer: Any = option(None, "the draft model's tokenizer; by default that which is stored with it")


@dataclass(frozen=True)
class DraftModelOptions(SmallModelOptions):
    """Options of `draft-model`, and of what drafts as it does."""

    sure: Annotated[float, Field(ge=0, le=1)] = option(
        0.0, "a draft ends before a unit whose likeliest value is below this; higher drafts less"
    )


def load_small_model(options: SmallModelOptions, drafter: str) -> TransformersTarget:
    """The small model as a target; of a prompt it reads the text, and images if it has vision."""
    if options.model is None:
        raise ValueError(
            f"{drafter} needs a smaller model of the target's tokenizer: drafter=<folder, hub name or live model>, or "
            "the option model="
        )
    return drafting_target(options.model)


def in_target_ids(
    small: TransformersTarget,
    target: Target,
    options: SmallModelOptions,
    drafting: Target | None = None,
    here: bool = True,
) -> Target:
    """The small model in the target's ids, on the target's device if this drafter loaded it and it drafts `here`.

    Two models with as many ids are said to have one tokenizer, unless those that are stored with them differ. Of two
    tokenizers of which the user named none, there is a warning. `drafting` is what drafts with the small model, in its
    ids; by default the model itself. Refuses vocabularies that differ where no tokenizers are known.
    """
    if here and isinstance(options.model, str) and isinstance(target, TransformersTarget):
        small.model.to(device_of(target.model))
    drafting = small if drafting is None else drafting
    named = options.tokenizer is not None or options.assistant_tokenizer is not None
    as_many = not named and small.vocab == target.vocab
    if as_many and place(small) == place(target):
        return drafting
    tokenizer, own = target_tokenizer(target, options), options.assistant_tokenizer
    draft_tokenizer = stored_tokenizer(small) if own is None else _live(own)
    if as_many and (tokenizer is None or draft_tokenizer is None or alike(tokenizer, draft_tokenizer)):
        return drafting
    if tokenizer is None:
        raise ValueError(
            f"the draft model has {small.vocab} unit ids and the target {target.vocab}: name the target's tokenizer "
            "(tokenizer=) and the draft model's (assistant_tokenizer=), and their tokens are mapped"
        )
    if draft_tokenizer is None:
        raise ValueError("the draft model was not loaded from a folder with a tokenizer; give assistant_tokenizer=")
    assert target.vocab is not None and small.vocab is not None
    vocabulary = VocabularyMap.between(tokenizer, draft_tokenizer, target.vocab, small.vocab)
    if not named and not alike(tokenizer, draft_tokenizer):
        warn(
            f"the draft model ({place(small)!r}) has another tokenizer than the target: it has {vocabulary.shared:.0%} "
            "of the target's tokens, and drafts no others, so that few drafts are accepted; a model of the target's "
            "tokenizer drafts better (name tokenizer= or assistant_tokenizer= if this one is meant)"
        )
    return TranslatedTarget(drafting, vocabulary)


class SmallModelDrafter(DraftModel):
    """Drafts with the smaller transformers model that options name, in the target's ids."""

    def __init__(self, options: SmallModelOptions, drafter: str, shape: Shape | None = None) -> None:
        self.options: Any = options
        self._small = load_small_model(options, drafter)
        super().__init__(self._small, shape)

    def bind(self, target: Target) -> None:
        self.model, self._target = in_target_ids(self._small, target, self.options), target
        super().bind(target)


def target_tokenizer(target: Target, options: Any) -> Any:
    """The target's tokenizer, live: the one that the option `tokenizer` names, or that is stored with the target; None
    if there is none.
    """
    return stored_tokenizer(target) if options.tokenizer is None else _live(options.tokenizer)


def special_ids(target: Target, tokenizer: Any) -> frozenset[int]:
    """The target's ids that stand for no text, by its tokenizer and by the roles that its settings name."""
    found = set[int]() if tokenizer is None else set(tokenizer.all_special_ids)
    if isinstance(target, TransformersTarget):
        for settings in (target.model.config, target.model.generation_config):
            for role in ROLES:
                named = settings.to_dict().get(role)
                found |= set(named if isinstance(named, list) else [named])
    return frozenset(i for i in found if i is not None and 0 <= i < (target.vocab or 0))


def _live(tokenizer: Any) -> Any:
    return load_tokenizer(tokenizer) if isinstance(tokenizer, str) else tokenizer
