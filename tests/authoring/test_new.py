"""`mmspec new`: what it writes works at once, as a file and installed; what it refuses leaves nothing behind."""

import importlib
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from mmspec import authoring

FILES = {"README.md", "pyproject.toml", "tests/test_conformance.py", ".github/workflows/test.yml"}


def written(folder: Path) -> set[str]:
    return {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}


@pytest.mark.parametrize(
    "kind", ["policy", pytest.param("rule", marks=pytest.mark.slow), "target"]
)  # the drafter is the one of the tutorial
def test_it_passes_the_checks_before_a_line_was_changed(tmp_path: Path, mmspec, kind: str) -> None:
    run = mmspec("new", f"green-{kind}", "--kind", kind, "--out", str(tmp_path))
    assert run.exit_code == 0, run.output
    folder = tmp_path / f"mmspec-green-{kind}"
    assert written(folder) == FILES | {f"mmspec_green_{kind}.py"}
    assert "$" not in "".join((folder / name).read_text() for name in FILES)
    entries = tomllib.loads((folder / "pyproject.toml").read_text())["project"]["entry-points"]
    assert entries == {"mmspec": {f"green_{kind}": f"mmspec_green_{kind}"}}

    run = mmspec("--plugin", str(folder / f"mmspec_green_{kind}.py"), "check", f"green_{kind}")
    assert run.exit_code == 0, run.output
    assert "pass" in run.output and "fail" not in run.output


@pytest.mark.parametrize("kind", authoring.COMPONENTS)
def test_it_asks_for_what_its_checks_need(tmp_path: Path, mmspec, kind: str) -> None:
    run = mmspec("new", "acme", "--kind", kind, "--out", str(tmp_path))
    folder = tmp_path / "mmspec-acme"
    assert 'pip install "mmspec[check]"' in run.output and "[test]" in run.output
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    assert project["optional-dependencies"]["test"] == ["mmspec[check]", "pytest"]
    readme, workflow = (folder / "README.md").read_text(), (folder / ".github/workflows/test.yml").read_text()
    assert 'pip install -e ".[test]"' in readme and 'pip install "mmspec[check]"' in readme
    assert "pip install -e '.[test]'" in workflow


def test_the_readme_of_a_target_runs(tmp_path: Path, mmspec, monkeypatch, capsys) -> None:
    """Those of the others are about a model and inputs of the reader's."""
    assert mmspec("new", "red", "--kind", "target", "--out", str(tmp_path)).exit_code == 0
    folder = tmp_path / "mmspec-red"
    monkeypatch.syspath_prepend(folder)
    code = re.search(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)[1]
    exec(compile(code, "README.md", "exec"), {})
    assert len(re.findall(r"\d+", capsys.readouterr().out)) == 20


def test_a_picture_model_of_ones_own_draws_from_its_saved_folder(tmp_path: Path, mmspec, monkeypatch) -> None:
    run = mmspec("new", "discs", "--kind", "picture", "--out", str(tmp_path))
    assert "pytest" in run.output and "check" not in run.output
    folder = tmp_path / "mmspec-discs"
    monkeypatch.syspath_prepend(folder)
    importlib.import_module("mmspec_discs_pictures").tiny().save_pretrained(tmp_path / "tiny")
    how = ("--model", str(tmp_path / "tiny"), "--method", "gs-sjd", "-o", str(tmp_path / "left.png"))
    run = mmspec("--plugin", str(folder / "mmspec_discs.py"), "generate", "image", "left", *how)
    assert run.exit_code == 0 and "gs-sjd (invariant): 64 units" in run.output, run.output
    assert (tmp_path / "left.png").is_file()


# Slow: the drafter's checks once more; third_party/ has an installed plugin in the fast tier
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["drafter", "picture"])
def test_installed_it_is_found_and_its_own_test_passes(tmp_path: Path, mmspec, kind: str) -> None:
    assert mmspec("new", "acme", "--kind", kind, "--out", str(tmp_path)).exit_code == 0
    folder, site = tmp_path / "mmspec-acme", tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
    subprocess.run([*pip, "--target", str(site), str(folder)], check=True)
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder / "tests")],
        env=os.environ | {"PYTHONPATH": str(site)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0 and "passed" in run.stdout, run.stdout[-3000:]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["acme", "--kind", "drafte"], "did you mean 'drafter'"),
        (["Acme Corp"], "did you mean 'acme-corp'?"),
        (["mmspec-acme"], "without 'mmspec-', not 'mmspec-acme'; did you mean 'acme'?"),
        (["9"], "lower-case words"),
        (["text"], "'text' is mmspec's own"),
        (["core"], "'core' is mmspec's own"),
        (["models"], "'models' is mmspec's own"),
        (["suffix"], "a drafter of plugin 'text' is called 'suffix'"),
        (["match", "--kind", "rule"], "a rule of plugin 'core' is called 'match'"),
        (["taken"], "is there already"),
    ],
)
def test_names_are_refused_before_anything_is_written(tmp_path: Path, mmspec, arguments: list[str], says: str) -> None:
    (tmp_path / "mmspec-taken").mkdir()
    run = mmspec("new", *arguments, "--out", str(tmp_path))
    assert run.exit_code != 0 and says in str(run.exception)
    assert [path.name for path in tmp_path.iterdir()] == ["mmspec-taken"]


def test_nothing_half_written_stays(tmp_path: Path, mmspec, monkeypatch) -> None:
    monkeypatch.setattr(authoring, "_words", lambda name: {"module": "mmspec_acme", "plugin": "acme"})
    run = mmspec("new", "acme", "--out", str(tmp_path))
    assert isinstance(run.exception, KeyError) and not list(tmp_path.iterdir())
