"""Noise with exponentials alone: that of the exponential race of a dense distribution, under the rule `match`."""

from typing import ClassVar, Self

from torch import Tensor

from mmspec.core.noise import Substream


class RaceNoise:
    """What such noise refuses; its kinds have `exponential` and `at`."""

    name: ClassVar[str]  # the noise, for errors
    advice: ClassVar[str]  # what would do, for errors

    def substream(self, substream: Substream) -> Self:
        if substream is not Substream.UNIT:
            raise ValueError(f"{self.name} has one stream, which only the rule 'match' can use; {self.advice}")
        return self

    def where(self, mask: Tensor, substream: Substream) -> Self:
        return self.substream(substream)

    def exponential_at(self, ids: Tensor) -> Tensor:
        raise ValueError(f"{self.name} needs dense distributions; {self.advice}")

    def uniform(self) -> Tensor:
        raise ValueError(f"{self.name} has exponentials only; {self.advice}")

    def normal(self, *unit: int) -> Tensor:
        raise ValueError(f"{self.name} has exponentials only; {self.advice}")
