"""`python -m tools.bench.peak JSON`: the peak of a process that loads two models and decodes once with a budget.

Before, all of it happens once, so that libraries are loaded and kernels compiled; Linux then begins to count anew.
"""

import ctypes
import gc
import json
import re
import sys
from pathlib import Path
from typing import Any

import torch

from mmspec.api.build import decoder_for
from mmspec.bench.methods import decoder_arguments
from mmspec.core.warp import Warp
from mmspec.hosts.loading import load_model

STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def resident(kind: str) -> int:
    """Bytes of this process that are in memory (`VmRSS`), or were at most (`VmHWM`)."""
    found = re.search(rf"{kind}:\s+(\d+) kB", STATUS.read_text())
    assert found is not None, "Linux tells what a process takes"
    return 1024 * int(found[1])


def decoded(model: str, how: dict[str, Any], ids: list[list[int]], new: int, temperature: float) -> None:
    """One call of models that are loaded for it."""
    target, small = load_model(model, "cpu"), load_model(how["drafter"], "cpu")
    decoder = decoder_for(target, **decoder_arguments({**how, "drafter": small}))
    decoder.generate({"input_ids": torch.tensor(ids)}, new, seed=0, warp=Warp.sampling(temperature))


def peak(given: dict[str, Any]) -> int:
    """Bytes that a call and its models take at their peak."""
    decoded(**given)
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    before = resident("VmRSS")
    RESET.write_text("5")
    decoded(**given)
    return resident("VmHWM") - before


if __name__ == "__main__":
    print(peak(json.loads(sys.argv[1])))
