"""A first-party plugin is an ordinary plugin: taken out of the tree and installed on its own, it works."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYPROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "mmspec-text"
version = "7.0"
dependencies = ["mmspec"]
[project.entry-points.mmspec]
text = "mmspec_text.plugin"
"""
#: The command line without the plugins of the source tree: the core alone, and what is installed beside it.
MMSPEC = f"""
import sys
sys.path[:] = [p for p in sys.path if p != {str(ROOT / "plugins")!r}]
from mmspec.cli import main
main()
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the text plugin alone, installed from a copy."""
    project, site = tmp_path_factory.mktemp("project"), tmp_path_factory.mktemp("site")
    shutil.copytree(ROOT / "plugins" / "mmspec_text", project / "mmspec_text")
    (project / "pyproject.toml").write_text(PYPROJECT)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
    subprocess.run([*pip, "--target", str(site), str(project)], check=True, cwd=project)
    return site


def mmspec(site: Path, *arguments: str) -> str:
    run = subprocess.run(
        [sys.executable, "-c", MMSPEC, *arguments],
        env={"PYTHONPATH": str(site), "PATH": "/usr/bin:/bin", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
        cwd=site,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_it_is_loaded_from_where_it_was_installed(site: Path) -> None:
    found = {p["name"]: p for p in json.loads(mmspec(site, "plugins", "--json"))}
    text = found["text"]
    assert (text["status"], text["distribution"], text["version"]) == ("ok", "mmspec-text", "7.0")
    assert Path(text["location"]) == site / "mmspec_text" / "plugin.py"
    assert found["core"]["status"] == "ok" and found["image"]["status"] == "error"


def test_its_methods_and_commands_are_there(site: Path) -> None:
    methods = {m["name"]: m for m in json.loads(mmspec(site, "methods", "--json"))}
    assert {"plain", "prompt-lookup", "draft-model"} <= set(methods)
    assert methods["prompt-lookup"]["rule"] == "core:match" and methods["prompt-lookup"]["exactness"] == "invariant"
    assert "a head on its hidden states" in mmspec(site, "train", "drafter", "--help")
