"""The small model of a drafter: found, loaded, and taught the target's vocabulary where its own differs."""

from dataclasses import dataclass, field
from typing import Any

from mmspec.core.protocols import Target
from mmspec.hosts.guests import guest
from mmspec.hosts.loading import load_tokenizer
from mmspec.hosts.target import TransformersTarget
from mmspec.hosts.translated import TranslatedTarget
from mmspec.hosts.vocabulary import VocabularyMap


@dataclass(frozen=True)
class SmallModelOptions:
    """Which small model, and how its words are understood."""

    model: Any = field(
        default=None, metadata={"help": "the smaller model: a shipped name, a folder, a hub name or a live model"}
    )
    tokenizer: Any = field(
        default=None, metadata={"help": "the target's tokenizer, where the draft model has another: live, or a name"}
    )
    assistant_tokenizer: Any = field(
        default=None, metadata={"help": "the draft model's tokenizer; by default that which is stored with it"}
    )


def load(options: SmallModelOptions, drafter: str) -> TransformersTarget:
    """The small model as a target of its own; of a prompt it reads the text, and images if it can see.

    Args:
        options: Which.
        drafter: Who asks.

    Raises:
        ValueError: No model was named, or it cannot be loaded.
    """
    if options.model is None:
        raise ValueError(f"{drafter} needs a smaller model: drafter=<model>, or the option model=mmspec/text-1m")
    return guest(options.model)


def speaking(small: TransformersTarget, target: Target, options: SmallModelOptions) -> Target:
    """The small model in the target's ids.

    Args:
        small: It.
        target: The larger one.
        options: The tokenizers.

    Raises:
        ValueError: The vocabularies differ, and tokenizers to map them by were not given.
    """
    if isinstance(options.model, str) and isinstance(target, TransformersTarget):
        small.model.to(target.model.device)
    if options.tokenizer is None and options.assistant_tokenizer is None and small.vocab == target.vocab:
        return small
    if options.tokenizer is None:
        raise ValueError(
            f"the draft model has {small.vocab} unit ids and the target {target.vocab}: name the target's tokenizer "
            "(tokenizer=) and the draft model's (assistant_tokenizer=), and their tokens are mapped"
        )
    stored = options.model if isinstance(options.model, str) else getattr(small.model.config, "_name_or_path", None)
    theirs = options.assistant_tokenizer if options.assistant_tokenizer is not None else stored
    if not theirs:
        raise ValueError("the draft model was not loaded from a folder with a tokenizer; give assistant_tokenizer=")
    assert target.vocab is not None and small.vocab is not None
    words = VocabularyMap.between(_live(options.tokenizer), _live(theirs), target.vocab, small.vocab)
    return TranslatedTarget(small, words)


def _live(tokenizer: Any) -> Any:
    return load_tokenizer(tokenizer) if isinstance(tokenizer, str) else tokenizer
