"""The language part of a model of transformers: its decoder, and the list of its layers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

OTHER_SENSES = ("vision", "visual", "image", "audio")
"""Parts of a module's name that say that its layers do not read the text."""


@dataclass(frozen=True)
class LanguagePart:
    """The part of a model that reads text."""

    layers: Sequence[nn.Module]  # its layers, in order
    decoder: nn.Module  # what turns ids into states, final norm included, without the output layer

    @property
    def final_norm(self) -> nn.Module:
        """What turns the last layer's states into those that the output layer reads.

        Raises:
            ValueError: The decoder has no norm behind its layers.
        """
        norms = [child for child in self.decoder.children() if "norm" in type(child).__name__.lower()]
        if not norms:
            raise ValueError(f"{type(self.decoder).__name__} has no norm behind its layers, which exits would share")
        return norms[-1]

    @classmethod
    def of(cls, model: Any, count: int) -> "LanguagePart":
        """Find the part in a model of so many layers, by a walk over all of its modules.

        Raises:
            ValueError: The layers cannot be told from the other parts of the model.
        """
        lists = [
            (name, module)
            for name, module in model.named_modules()
            if isinstance(module, nn.ModuleList) and not any(sense in name for sense in OTHER_SENSES)
        ]
        exact = [found for found in lists if len(found[1]) == count]
        blocks = [found for found in lists if found[0].endswith(".layers") and found[0].count(".") == 1]  # of two parts
        if not exact + blocks:
            raise ValueError(
                f"{type(model).__name__} has no list of its {count} layers, so that no drafter can read its hidden "
                "states; use a method that needs none"
            )
        name, layers = min(exact or blocks, key=lambda found: found[0].count("."))
        part = model.get_decoder()
        inside = isinstance(part, nn.Module) and part is not model and any(m is layers for m in part.modules())
        # Some models name another part as their decoder, or themselves.
        return cls(list(layers), part if inside else model.get_submodule(name.rpartition(".")[0]))
