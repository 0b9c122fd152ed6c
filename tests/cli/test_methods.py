"""`mmspec methods` and `mmspec plugins`: quick, without torch, and honest about what is broken."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BROKEN = "raise RuntimeError('out of order')\n"
DANGLING = """
from mmspec.registry import MethodSpec, hookimpl

@hookimpl
def mmspec_components():
    yield MethodSpec(name="plain", exactness="lossy", summary="Another plain.")
    yield MethodSpec(name="lost", drafter="gone", exactness="lossy", summary="Names nothing.")
"""


def mmspec(*arguments: str, path: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"COLUMNS": "200"} | environment | ({"PYTHONPATH": str(path)} if path else {})
    return subprocess.run([sys.executable, "-m", "mmspec", *arguments], env=environment, capture_output=True, text=True)


def test_methods_says_what_each_promises_and_who_brings_it() -> None:
    rows = {row["name"]: row for row in json.loads(mmspec("methods", "--json").stdout)}
    assert rows["plain"]["exactness"] == "invariant" and rows["plain"]["owner"] == "text"
    assert rows["plain"]["needs"] == []  # whatever a target draws, some rule decodes it
    assert rows["draft-model"]["drafter"] == "text:draft-model" and rows["draft-model"]["rule"] == "core:match"
    assert rows["draft-model"]["needs"] == ["discrete", "text"]
    adapter = rows["speculative-denoising"]
    assert (adapter["owner"], adapter["exactness"], adapter["drafter"]) == ("continuous", "lossless", None)
    assert json.loads(mmspec("methods", "speculative-denoising", "--json").stdout) == [adapter]
    table = mmspec("methods").stdout
    assert "invariant" in table and "prompt-lookup" in table


def test_a_method_and_an_adapter_name_their_papers() -> None:
    assert "\nPaper: https://arxiv.org/abs/2411.04975\n" in mmspec("methods", "suffix").stdout
    assert "\nPaper: https://arxiv.org/abs/2501.05370\n" in mmspec("methods", "speculative-denoising").stdout
    assert "Paper" not in mmspec("methods", "plain").stdout


@pytest.mark.parametrize("command", ["methods", "plugins"])
def test_answers_without_importing_what_is_heavy(command: str) -> None:
    script = (
        "import sys; from mmspec.cli.app import build; "
        f"build()(['{command}'], standalone_mode=False); "
        "print({'torch', 'transformers', 'diffusers', 'numpy', 'PIL'} & set(sys.modules))"
    )
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert out.splitlines()[-1] == "set()"


def test_a_broken_plugin_is_listed_with_its_error(install) -> None:
    site = install("broken", BROKEN)
    listed = {p["name"]: p for p in json.loads(mmspec("plugins", "--json", path=site).stdout)}
    assert listed["broken"]["status"] == "error" and "out of order" in listed["broken"]["error"]
    assert listed["broken"]["distribution"] == "mmspec-broken" and listed["text"]["status"] == "ok"
    assert "out of order" in mmspec("plugins", path=site).stdout
    assert json.loads(mmspec("methods", "--json", path=site).stdout)

    strict = mmspec("methods", path=site, MMSPEC_STRICT="1")
    assert strict.returncode != 0 and "plugin 'broken'" in strict.stderr


def test_shared_names_are_shown_with_their_owner_and_dangling_ones_with_their_error(install) -> None:
    site = install("acme", DANGLING)
    table = mmspec("methods", path=site).stdout
    assert "acme:plain" in table and "text:plain" in table and "no drafter is called 'gone'" in table


def test_defaults_of_a_method_and_those_on_a_gpu() -> None:
    shown = mmspec("methods", "token-recycling").stdout
    assert "8; on a GPU 32" in shown and "successors that are remembered" in shown
    assert mmspec("methods", "suffix").returncode == 0


def test_a_users_mistake_is_one_line() -> None:
    run = mmspec("methods", "prompt-lokup")
    assert run.returncode == 2 and run.stdout == ""
    assert run.stderr.startswith("mmspec: no method is called 'prompt-lokup'; did you mean 'prompt-lookup'?")
    assert run.stderr.count("\n") == 1
    assert "Traceback" in mmspec("methods", "prompt-lokup", MMSPEC_TRACE="1").stderr


def test_version() -> None:
    assert mmspec("--version").stdout == "mmspec 0.1.0\n"
