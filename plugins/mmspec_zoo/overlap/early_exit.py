"""What a transformers model thinks behind one of its layers, told while its pass goes on."""

from collections.abc import Callable
from dataclasses import dataclass
from threading import get_ident
from typing import Any

from torch import Tensor, nn

from mmspec.hosts.target import TransformersTarget
from mmspec_zoo.sublayers import SubLayers


@dataclass(frozen=True)
class LayerExit:
    """Logits from the states behind a layer, by the model's own norm and output layer.

    Raises:
        ValueError: The model has no such exit.
    """

    target: TransformersTarget
    layer: int  # how many layers are run before

    def __post_init__(self) -> None:
        SubLayers(self.target.model_info).from_layer(self.layer)  # refuses what does not exist

    def once(self, hear: Callable[[Tensor], None]) -> Callable[[], None]:
        """As in `mmspec_zoo.overlap.mirrored.EarlyExit`; passes of other threads are not heard."""
        language, output, thread = self.target.model_info.language, self.target.lend().output, get_ident()

        def read(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if get_ident() == thread:
                handle.remove()
                states = args[0] if args else kwargs["hidden_states"]
                hear(output(language.final_norm(states)))

        handle = language.layers[self.layer].register_forward_pre_hook(read, with_kwargs=True)
        return handle.remove
