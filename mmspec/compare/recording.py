"""What one run of a script left: a line for every `generate` call, the ids, and what was printed."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

CALLS, IDS, STDOUT, STDERR = "calls.json", "ids.safetensors", "stdout", "stderr"


@dataclass
class Call:
    """One `generate` call that the script made.

    Attributes:
        number: From 1, in the order of their beginnings.
        model: The model's class.
        first: Whether it was this model's first.
        prompt: Columns of the prompt in the result; 0 where the prompt was given as embeddings.
        began: Digest of torch's generators when it began.
        seconds: Wall time.
        method: The method that decoded it; "" if transformers did.
        why: Why this method, where `auto` chose it.
        left_alone: Why mmspec did not decode it; "" if it did, or was not asked to.
        documented: Whether that is a documented refusal.
        emitted: Units emitted after the prefill, all rows together.
        passes: Passes of the target that they took, summed over rows.
        raised: Class of the exception that it ended in, if it did.
        near_ties: Of a comparison with other ids: row, new token, margin.
        wrong: Of a comparison with other ids: what is wrong with them beyond near-ties; "" if nothing is.
        judged: Whether that comparison was made.
    """

    number: int
    model: str
    first: bool
    prompt: int
    began: str
    seconds: float = 0.0
    method: str = ""
    why: str = ""
    left_alone: str = ""
    documented: bool = False
    emitted: int = 0
    passes: int = 0
    raised: str = ""
    near_ties: list[tuple[int, int, float]] = field(default_factory=list)
    wrong: str = ""
    judged: bool = False


def save(folder: Path, calls: list[Call], ids: Mapping[int, "Tensor"]) -> None:
    """Write lines and ids (`[batch, prompt + new]` by number of the call)."""
    if ids:  # without a single call torch may not even be imported
        from safetensors.torch import save_file

        save_file({str(number): each.contiguous() for number, each in ids.items()}, folder / IDS)
    (folder / CALLS).write_text(json.dumps([asdict(call) for call in calls]))


@dataclass(frozen=True)
class Recording:
    """What `save` wrote, with what the script printed.

    Attributes:
        folder: Where it is.
    """

    folder: Path

    @cached_property
    def calls(self) -> list[Call]:
        """In the order of their beginnings."""
        lines: list[dict[str, Any]] = json.loads((self.folder / CALLS).read_text())
        return [Call(**line) for line in lines]

    @cached_property
    def ids(self) -> dict[int, "Tensor"]:
        """`[batch, prompt + new]` by number of the call; a call that raised has none."""
        from safetensors.torch import load_file

        file = self.folder / IDS
        return {int(number): ids for number, ids in load_file(file).items()} if file.is_file() else {}

    @cached_property
    def stdout(self) -> list[bytes]:
        """What the script printed, by line, with line ends."""
        return (self.folder / STDOUT).read_bytes().splitlines(keepends=True)

    @property
    def stderr(self) -> str:
        """Warnings, progress bars, tracebacks."""
        return (self.folder / STDERR).read_text(errors="replace")
