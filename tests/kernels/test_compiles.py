"""Every kernel compiles for CUDA, which the interpreter does not show; no GPU is needed."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed; make test-kernels installs it")
def test_all_kernels(tmp_path: Path) -> None:
    switches = {"PYTHONPATH": os.pathsep.join(sys.path), "TRITON_CACHE_DIR": str(tmp_path)}
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"} | switches
    ran = subprocess.run(
        [sys.executable, "-m", "tests.kernels.compile_all"],
        cwd=Path(__file__).parents[2],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    kernels = {"_numbers", "_exponentials_at", "_race", "_walk", "_move", "_couple", "_siblings", "_masses", "_race_at"}
    kernels |= {"_normalise", "_gate", "_rotate", "_scan"}
    assert set(ran.stdout.split()) == kernels
