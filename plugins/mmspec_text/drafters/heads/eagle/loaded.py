"""What became of a checkpoint: the report that a user reads when a head drafts badly."""

from dataclasses import dataclass, replace
from typing import Protocol

from mmspec_text.drafters.heads.eagle.family import Layout
from mmspec_text.drafters.heads.trial import Trial


class Described(Protocol):
    """A checkpoint of any kind of head; attributes as in `Loaded`."""

    @property
    def name(self) -> str: ...

    @property
    def layout(self) -> Layout: ...

    @property
    def taken(self) -> tuple[str, ...]: ...

    @property
    def shared(self) -> tuple[str, ...]: ...

    @property
    def ignored(self) -> tuple[str, ...]: ...


@dataclass(frozen=True)
class Loaded:
    """A load report."""

    name: str  # the head
    layout: str  # the layout in which it was stored
    taken: tuple[str, ...]  # keys that are used
    shared: tuple[str, ...]  # parts that are the target's
    ignored: tuple[str, ...]  # keys that are not used
    trial: Trial | None = None  # how it did on the first prompt that was long enough; None before

    @classmethod
    def of(cls, checkpoint: Described) -> "Loaded":
        """The report of a checkpoint."""
        layout = checkpoint.layout.name
        return cls(checkpoint.name, layout, checkpoint.taken, checkpoint.shared, checkpoint.ignored)

    def after(self, trial: Trial) -> "Loaded":
        """The report with a trial."""
        return replace(self, trial=trial)

    def __str__(self) -> str:
        lines = [
            f"{self.name}: layout {self.layout}",
            f"taken: {', '.join(self.taken)}",
            f"shared with the target: {', '.join(self.shared) or 'nothing'}",
            f"ignored: {', '.join(self.ignored) or 'nothing'}",
        ]
        if self.trial is not None:
            right = self.trial.right
            ways = {name: f" if layer ids mean {name}" if len(right) > 1 else "" for name in right}
            shares = ", ".join(f"{share:.0%}{ways[name]}" for name, share in right.items())
            lines.append(f"guesses of {self.trial.units} tokens of the prompt: {shares}")
            second = ", ".join(f"{share:.0%} {_fed(normed)}" for normed, share in self.trial.second.items())
            lines += [f"second guesses: {second}"] if second else []
        return "\n".join(lines)


def _fed(normed: bool) -> str:
    return "if the state fed back is normalised" if normed else "if it is not"
