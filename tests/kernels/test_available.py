"""Where kernels run, and why not elsewhere."""

import os
import subprocess
import sys

import pytest
import torch

from mmspec.core import kernels


@pytest.fixture(autouse=True)
def asked_anew(monkeypatch):
    monkeypatch.setattr(kernels, "_answers", {})


def test_reasons(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert not kernels.available(torch.device("cpu"))
    assert "need CUDA" in kernels.why_not("cpu") and "mps" in kernels.why_not("mps")
    monkeypatch.setattr(kernels, "find_spec", lambda name: None)
    assert "pip install triton" in kernels.why_not("cuda", 0)
    monkeypatch.setattr(kernels, "find_spec", lambda name: object())
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (6, 1))
    assert "6.1" in kernels.why_not("cuda", 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (9, 0))
    assert kernels.available(torch.device("cuda", 2))


@pytest.mark.slow  # where Triton is not installed, every other test of a decoder shows it
def test_triton_is_not_imported_where_no_kernel_runs():
    """A decoder on the CPU works without Triton."""
    code = (
        "import sys; sys.modules['triton'] = None\n"
        "from mmspec.core.decoder import Decoder\n"
        "from mmspec.testing.toys.history import HistoryTarget\n"
        "import torch\n"
        "assert Decoder(HistoryTarget.random(5, 0)).generate(torch.zeros(1, 2).long(), 4, seed=0).units"
    )
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


def test_torch_traces_the_question(monkeypatch):
    """Compiled code asks once, while it is traced."""
    monkeypatch.setattr(kernels, "_answers", {("cpu", None): ""})

    @torch.compile(fullgraph=True, backend="eager")
    def asking(x):
        return x + 1 if kernels.available(x.device) else x * 2

    assert asking(torch.full((1,), 3.0)).item() == 4
    monkeypatch.setattr(kernels, "_answers", {("cpu", None): "no"})
    torch.compiler.reset()
    assert asking(torch.full((1,), 3.0)).item() == 6
