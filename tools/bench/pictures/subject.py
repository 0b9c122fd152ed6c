"""What a benchmark of pictures asks of a model: its settings, its methods, who else draws with it, its limits."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from mmspec.bench.race import Track
from mmspec.core.warp import Warp
from mmspec.kits.pictures.conditions import Condition
from mmspec.report.result import Row
from tools.bench.pictures.contestants import Other, OwnMethod, PictureSampler
from tools.report.whole import Limits


@dataclass(frozen=True)
class Setting:
    """How units are drawn."""

    guidance: float  # scale of classifier-free guidance; 1 is none
    # Of sampling from logits; None: the target's distributions are drawn from as they are
    temperature: float | None = None
    whole: bool = False  # whether windows are swept, further contestants run, memory is measured, and batches are tried

    @property
    def name(self) -> str:
        """What it is called in a result."""
        return f"guidance {self.guidance:g}" + ("" if self.temperature is None else f", T = {self.temperature:g}")

    @property
    def guided(self) -> bool:
        """Whether there is an unconditional half."""
        return self.guidance != 1

    @property
    def warp(self) -> Warp:
        """From logits to distributions."""
        if self.temperature is None:
            return Warp()
        return Warp.sampling(self.temperature, guidance=self.guidance if self.guided else None)


class Subject(Protocol):
    """What is measured: a model of pictures of one kind of units, and who else draws with it."""

    kind: str  # kind of the result
    unit: str  # what a unit is called
    methods: Sequence[str]  # our methods that are tried where the user names none
    settings: Sequence[Setting]  # how units are drawn; one of them is `whole`
    batched: Sequence[str]  # names, of those in `tried`, of what is tried on a batch
    about: str  # A sentence for the result on how the model was run; "" for none
    notes: Mapping[str, str]  # what the numbers of a row's quality are

    def sampler(self, setting: Setting) -> PictureSampler:
        """What draws pictures in a setting."""

    def tried(self, chosen: Sequence[str], window: int, whole: bool) -> dict[str, dict[str, Any]]:
        """Options of `decoder_for`, by the name that a result gives them; more of them where the whole is tried."""

    def others(self, setting: Setting, plain: OwnMethod, window: int) -> dict[str, Other]:
        """Further contestants, by name; `plain` is plain decoding, whose `truth` is filled."""

    def row(self, row: Row, track: Track | None) -> Row:
        """A row as it is reported: with the quality that this kind of units has; no track of a batch."""

    def same(self, a: Tensor, b: Tensor) -> bool:
        """Whether two pictures' units are equal but for the arithmetic of a batch."""

    def limits(self, setting: Setting, condition: Condition, most: int, device: str) -> tuple[Limits, dict[int, float]]:
        """Limits of passes of one picture up to `most` nodes, and the seconds of a pass by nodes."""
