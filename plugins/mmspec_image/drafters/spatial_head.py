"""`spatial-head`: a Jacobi window whose new slots are drawn from a trained head's distribution of the next row.

The heads of SSD (arXiv 2606.20543), put to an exact use. The paper verifies a whole row in the contexts that were
drafted, which is lossy; here the head fills slots that enter a window (Jacobi, 2410.01699): q = softmax(lm_head(ĥ)),
under the call's guidance and warp, ĥ from the states and codes above (`mmspec_image.models.spatial_head`). Where the
row above is not known (the first row of a picture, slots more than a row ahead), the left code is copied.
Guarantee: exact. A new slot carries the distribution that it was drawn from; everything that the head read was known
before the draw.
A window refines its units several times before they are emitted, so that a better filling saves little: a head whose
draws were right in 62 % of the new slots, the code above in 37 %, saved 7 % of the passes at a window of 8 (the shipped
emoji, guidance 2), 5 % at 16 and less than 1 % at 32, and no time on a CPU.
Knobs: `model` is the head; the window (`k`): up to a row, all new slots have the row above.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from mmspec.core.distributions import Categorical, Distribution, PointMass
from mmspec.core.drafters.initialisations import LeftUnit
from mmspec.core.drafters.jacobi import Jacobi, Window
from mmspec.core.hidden import FINAL, Lends, Lent
from mmspec.core.history_processors import Prefix
from mmspec.core.live import Live
from mmspec.core.noise import DraftNoise
from mmspec.core.protocols import Target
from mmspec.core.state import State
from mmspec.core.types import Draft, Step, TargetOutput
from mmspec.core.warp import Warp
from mmspec.hosts.loading import load_as
from mmspec.kits.pictures.grid_spec import Gridded
from mmspec_image.drafters.grid_fillings import looked_up
from mmspec_image.models.spatial_head import SpatialHead
from mmspec_image.specs import SPATIAL_HEAD


@dataclass(frozen=True)
class SpatialHeadOptions:
    model: Any = field(default=None, metadata={"help": "the head: a folder or a hub name"})


@dataclass(frozen=True)
class RowAhead:
    """The filling: one for each call."""

    head: SpatialHead
    lent: Lent  # the target's embedding and output layer
    tables: Tensor  # `[2, codes]` int64: the numbers of the codes above and above on the right, -1: none
    # `[batch, place, halves, dim]`: the states that codes were drawn from, as far as passes went; states behind the
    # emitted codes are of the last pass
    states: Tensor
    warp: Warp  # the call's, in this round
    prefix: Prefix  # the known units

    reach = 0

    @torch.no_grad()
    def fill(self, live: Live, window: Window, noise: DraftNoise) -> tuple[Tensor, Distribution | None]:
        left, _ = LeftUnit().fill(live, window, noise)
        output, found = self._output(live, window)
        rooted = Draft.chain(window.units[:, :-1]).rooted(live.root, torch.full_like(live.emitted, left.shape[1]))
        distribution = self.warp(output, rooted, self.prefix).distribution
        if isinstance(distribution, PointMass):
            return torch.where(found, distribution.points, left), None
        assert isinstance(distribution, Categorical)
        units = torch.where(found, distribution.draw(noise.chain(1, left.shape[1])), left)
        size = distribution.size
        return units, Categorical(torch.where(found[..., None], distribution.on(None), one_hot(left, size).float()))

    def _output(self, live: Live, window: Window) -> tuple[TargetOutput, Tensor]:
        """The head's scores of the window's units, and where it has what it reads: `[batch, k]`."""
        (above, is_above), (right, is_right) = (looked_up(table, live, window) for table in self.tables)
        place = (live.emitted[:, None] + torch.arange(above.shape[1], device=above.device)).clamp(
            max=self.tables.shape[1] - 1
        )
        rows = torch.arange(len(place), device=place.device)[:, None]
        # Reading a place that does not exist is harmless: what is made of it is not used.
        read = [self.states[rows, table[place].clamp(min=0)] for table in self.tables]  # [batch, k, halves, dim]
        units = [self.lent.embedding(codes)[:, :, None].expand_as(read[0]) for codes in (above, right)]
        logits = self.lent.output(self.head(*read, *units)).unbind(2)
        return TargetOutput(logits[0], logits[1] if len(logits) > 1 else None), is_above & is_right


@dataclass(frozen=True)
class Memory:
    """What a call remembers: the window, and how its new slots are filled."""

    window: Window | None
    filling: RowAhead


class SpatialHeadWindow:
    """See the module.

    Raises:
        ValueError: No head was named, or it cannot be read.
    """

    needs, offers = SPATIAL_HEAD.needs, SPATIAL_HEAD.offers

    def __init__(self, options: SpatialHeadOptions = SpatialHeadOptions()) -> None:
        if options.model is None:
            raise ValueError("spatial-head needs a head: drafter=<folder or hub name>, or the option model=")
        named = isinstance(options.model, str)
        self.head: SpatialHead = load_as(SpatialHead, options.model, torch.float32) if named else options.model

    def wrap(self, target: Target) -> Target:
        """The target, with the states that its output layer reads.

        Raises:
            ValueError: The target has no grid or no such states, or the head is one of another width.
        """
        if not (isinstance(target, Lends) and isinstance(target, Gridded)):
            raise ValueError(f"spatial-head reads states and codes of a grid, which {type(target).__name__} has not")
        if target.hidden_size != self.head.config.dim:
            raise ValueError(f"the head reads states of {self.head.config.dim} numbers, not of {target.hidden_size}")
        return target.with_hidden((FINAL,))

    def bind(self, target: Target) -> None:
        assert isinstance(target, Lends) and isinstance(target, Gridded)
        self._target, self._grid = target, target.grid

    def width(self, k: int) -> int:
        return k

    def start(self, state: State, inputs: Any) -> Memory:
        assert state.hidden is not None
        first = state.hidden[:, -1].unflatten(-1, (-1, self.head.config.dim))  # the first code was drawn from it
        states = first.new_zeros(len(first), state.limit + state.budget.width + 1, *first.shape[1:])
        states[:, 0] = first
        lent = self._target.lend()
        if (self.head.device, self.head.dtype) != (lent.device, lent.dtype):
            torch.nn.Module.to(self.head, lent.device, lent.dtype)  # past diffusers' own, which warns
        place = torch.arange(states.shape[1], device=lent.device) - self._grid
        tables = torch.stack([place, torch.where(place < 0, -1, place + 1)]).clamp(min=-1)
        return Memory(None, RowAhead(self.head, lent, tables, states, state.warp, state.prefix))

    def propose(self, state: State, k: int, noise: DraftNoise) -> Draft:
        memory: Memory = state.memory
        filling = replace(memory.filling, warp=state.warp, prefix=state.prefix)
        return Jacobi(filling).drafted(state.live, memory.window, k, noise)

    def observe(self, state: State, step: Step) -> None:
        """Node j's state is the one that the j-th code of this round was drawn from."""
        memory: Memory = state.memory
        states, hidden = memory.filling.states, step.scores.hidden
        assert hidden is not None
        place = (state.emitted - step.count)[:, None] + torch.arange(hidden.shape[1], device=hidden.device)
        rows = torch.arange(len(place), device=place.device)[:, None]
        place = place.clamp(max=states.shape[1] - 1)  # the last place is scratch
        states[rows, place] = hidden.unflatten(-1, (-1, self.head.config.dim))
        window = Jacobi(memory.filling).moved_on(memory.window, step, step.draft.nodes - 1)
        state.memory = replace(memory, window=window)
