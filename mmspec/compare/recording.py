"""The record of one run of a script: a line for every `generate` call, the ids, and what was printed."""

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
class RecordedCall:
    """One `generate` call that the script made."""

    number: int  # its number from 1, in the order in which calls began
    model: str  # the model's class
    first: bool  # whether it was this model's first call
    prompt: int  # columns of the prompt in the result; 0 if the prompt was given as embeddings
    began: str  # digest of the states of torch's generators when the call began
    seconds: float = 0.0  # wall time
    method: str = ""  # the method that decoded it; "" if transformers did
    why: str = ""  # why this method, if `auto` chose it
    left_alone: str = ""  # why mmspec did not decode it; "" if it did, or was not asked to
    documented: bool = False  # whether that refusal is documented
    emitted: int = 0  # units emitted after the prefill, all rows together
    passes: int = 0  # passes of the target for these units, summed over rows
    raised: str = ""  # class of the exception that the call raised; "" if it raised none
    # Row, new token and margin of every near-tie at which other ids differ from this call's
    near_ties: list[tuple[int, int, float]] = field(default_factory=list)
    wrong: str = ""  # the first wrong token of these other ids, in words; "" if there is none
    judged: bool = False  # whether other ids were compared with this call's
    width: int = 0  # nodes of every pass, if mmspec decoded the call under one shape; else 0
    half: bool = False  # whether the model's weights are in half precision


def save(folder: Path, calls: list[RecordedCall], ids: Mapping[int, "Tensor"]) -> None:
    """Write the calls and their ids (`[batch, prompt + new]` by number of the call)."""
    if ids:  # a script without a call need not have torch imported
        from safetensors.torch import save_file

        save_file({str(number): each.contiguous() for number, each in ids.items()}, folder / IDS)
    (folder / CALLS).write_text(json.dumps([asdict(call) for call in calls]))


@dataclass(frozen=True)
class Recording:
    """The calls that `save` wrote, and the lines that the script printed."""

    folder: Path  # the folder of the files

    @cached_property
    def calls(self) -> list[RecordedCall]:
        """The calls, in the order in which they began."""
        lines: list[dict[str, Any]] = json.loads((self.folder / CALLS).read_text())
        return [RecordedCall(**line) for line in lines]

    @cached_property
    def ids(self) -> dict[int, "Tensor"]:
        """`[batch, prompt + new]` by number of the call; a call that raised has none."""
        from safetensors.torch import load_file

        file = self.folder / IDS
        return {int(number): ids for number, ids in load_file(file).items()} if file.is_file() else {}

    @cached_property
    def stdout(self) -> list[bytes]:
        """The script's output, by line, with line ends."""
        return (self.folder / STDOUT).read_bytes().splitlines(keepends=True)

    @property
    def stderr(self) -> str:
        """Warnings, progress bars, tracebacks."""
        return (self.folder / STDERR).read_text(errors="replace")
