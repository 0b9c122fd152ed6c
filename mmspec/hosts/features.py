"""Hidden states of a transformers model, read by hooks on its layers while a pass runs.

A *boundary* is a place between two layers, counted from 0: boundary `i` is the input of layer `i`, which is the output
of layer `i - 1`; the last one is the output of the last layer, before the final norm. `FINAL` is the state behind that
norm, which the output layer reads. Only states that were asked for are kept, and hooks exist only inside the block.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn

from mmspec.core.hidden import FINAL
from mmspec.hosts.attention import model_lock
from mmspec.hosts.model_info import ModelInfo
from mmspec.hosts.traceable import Traceable


@dataclass(frozen=True)
class Record:
    """The states that passes of one block had at some boundaries."""

    reading: "Reading"  # the reading, whose hooks write here and nowhere else
    seen: Mapping[int, list[Tensor]]  # the states of every pass, `[batch, unit, hidden]`, by boundary

    @property
    def states(self) -> Tensor | None:
        """The states of all units of all passes, one boundary behind the other: `[batch, unit, width]`; or None."""
        boundaries = self.reading.boundaries
        if not boundaries:
            return None
        if not all(self.seen.values()):
            raise ValueError(
                f"{type(self.reading.model_info.model).__name__} leaves layers out of a pass, so that there are no "
                "states of them; use a method that needs no hidden states"
            )
        joined = [torch.cat(self.seen[boundary], 1) for boundary in boundaries]
        return torch.cat([states.to(joined[0].device) for states in joined], -1)

    def aligned(self, lengths: Tensor) -> Tensor | None:
        """`states` of rows that begin at the left edge and have `lengths [batch]` units, moved to the right edge."""
        states = self.states
        if states is None or bool((lengths == states.shape[1]).all()):
            return states
        order = torch.arange(states.shape[1], device=states.device)
        place = (order - (states.shape[1] - lengths.to(states.device))[:, None]).clamp(min=0)
        return states.gather(1, place[..., None].expand(-1, -1, states.shape[-1]))


_recording: Traceable[Record] = Traceable("mmspec_record")  # the record of the passes that run, or are traced, here


class Reading:
    """A block in which the states at some boundaries are recorded; without boundaries it does nothing.

    A captured pass is traced once and runs often: its hooks are on the model whenever it runs (`listening`), and each
    trace has a record of its own (`recording`). Hooks are the same objects every time, which compiled code checks.
    States are joined in the order of `boundaries`.
    """

    def __init__(self, model_info: ModelInfo, boundaries: Sequence[int]) -> None:
        self.model_info, self.boundaries = model_info, tuple(boundaries)
        self._block = ExitStack()

    def __getstate__(self) -> dict[str, Any]:
        """Hooks belong to one model: a copy makes its own."""
        return {"model_info": self.model_info, "boundaries": self.boundaries}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _block=ExitStack())

    @cached_property
    def _register(self) -> list[Callable[[], Any]]:
        return [self._registration(boundary) for boundary in dict.fromkeys(self.boundaries)]

    def __enter__(self) -> Record:
        self._block.enter_context(self.listening())
        return self._block.enter_context(self.recording())

    def __exit__(self, *error: object) -> None:
        self._block.close()

    @contextmanager
    def listening(self) -> Iterator[None]:
        """A block in which the hooks are on the model, and its lock is held."""
        with ExitStack() as hooks:
            hooks.enter_context(model_lock(self.model_info.model))
            for register in self._register:
                hooks.callback(register().remove)
            yield

    @contextmanager
    def recording(self) -> Iterator[Record]:
        """A block, which torch can trace, whose passes are recorded while the hooks are on the model."""
        record = Record(self, {boundary: [] for boundary in self.boundaries})
        with _recording.holding(record):
            yield record

    def _registration(self, boundary: int) -> Callable[[], Any]:
        keep, layers = self._keeper(boundary), self.model_info.language.layers
        if boundary == FINAL:
            return partial(self.model_info.language.decoder.register_forward_hook, _after(keep))
        if boundary == len(layers):
            return partial(layers[-1].register_forward_hook, _after(keep))
        return partial(layers[boundary].register_forward_pre_hook, _before(keep), with_kwargs=True)

    def _keeper(self, boundary: int) -> Callable[[Any], None]:
        def keep(states: Any) -> None:
            record = _recording.get()
            if record is None or record.reading is not self:
                return  # the model runs in another thread, for somebody else
            if not isinstance(states, Tensor) or states.dim() != 3:
                raise ValueError(
                    f"{type(self.model_info.model).__name__} hands several streams of states from layer to layer; "
                    "use a method that needs no hidden states"
                )
            record.seen[boundary].append(states)

        return keep


def checked_boundaries(model_info: ModelInfo, boundaries: Sequence[int]) -> tuple[int, ...]:
    """The boundaries, if the model has them; refuses layers that cannot be told from the model's other parts."""
    layers = len(model_info.language.layers)
    wrong = [boundary for boundary in boundaries if boundary != FINAL and not 0 <= boundary <= layers]
    if wrong or not boundaries:
        raise ValueError(
            f"{type(model_info.model).__name__} has {layers} layers, so its boundaries are 0 to {layers}, and {FINAL} "
            f"behind the final norm; there is no {', '.join(map(str, wrong)) or 'empty choice'}"
        )
    return tuple(boundaries)


def _before(keep: Callable[[Any], None]) -> Callable[..., None]:

    def hook(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        keep(args[0] if args else kwargs["hidden_states"])

    return hook


def _after(keep: Callable[[Any], None]) -> Callable[..., None]:

    def hook(layer: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        keep(output if isinstance(output, Tensor) else output[0])

    return hook
