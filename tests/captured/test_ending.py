"""A process that compiled does not wait for the compiler's workers when it ends."""

import functools
import subprocess
import sys

import pytest

from mmspec.core.compile import launch

pytestmark = pytest.mark.slow


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
        pool.process.kill()
