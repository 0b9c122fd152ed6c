"""A process that compiled ends at once: it takes no object of the compiler apart, and does not wait for its workers."""

import functools
import gc
import subprocess
import sys

import pytest

from mmspec.core.compile import launch

pytestmark = pytest.mark.slow
SCRIPT = """
import atexit, gc
atexit.register(lambda: print("left:", gc.get_freeze_count()))
import torch
from mmspec.core.compile.launch import compiled
class Adding:
    def one(self):
        return torch.ones(3) + 1
print(compiled(Adding().one)().tolist())
"""


def test_objects_are_left_to_the_system() -> None:
    ran = subprocess.run([sys.executable, "-W", "ignore", "-c", SCRIPT], capture_output=True, text=True, check=True)
    made, left = ran.stdout.splitlines()
    assert made == "[2.0, 2.0, 2.0]" and int(left.removeprefix("left: ")) > 100_000


def test_a_worker_that_does_not_end_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor.async_compile import AsyncCompile
    from torch._inductor.compile_worker.subproc_pool import SubprocPool

    pool = SubprocPool.__new__(SubprocPool)
    pool.process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    made = functools.cache(lambda: pool)
    made()
    monkeypatch.setattr(AsyncCompile, "process_pool", made)
    monkeypatch.setattr(launch, "PATIENCE", 0.01)
    try:
        launch._leave()
        assert pool.process.wait(300) < 0, "it was killed"
    finally:
        gc.unfreeze()
        pool.process.kill()
