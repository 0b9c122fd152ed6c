"""Somebody else's distributions beside our wheels, in an environment without the source tree: found, checked, used.

The fast tier has a plugin in a folder of its own (`tests/registry/test_extract_plugin.py`), one that is checked by the
command (`tests/conformance/test_kit.py`), and what our wheel holds (`tests/wheels`).
"""

import json
import shutil
from pathlib import Path

import pytest

from tests.support.wheels import CODE, MODELS, Environment

THEIRS, POSE = Path(__file__).parent / "mmspec-backoff", Path(__file__).parents[2] / "examples" / "mmspec-pose"
USE = """
import mmspec, torch
from mmspec.hosts.loading import load_model, load_tokenizer

model, tokenizer = load_model("mmspec/text-1m"), load_tokenizer("mmspec/text-1m")
inputs = tokenizer("def main():\\n    for i in range(10):\\n", return_tensors="pt", return_token_type_ids=False)

def generate():
    torch.manual_seed(4)
    return model.generate(**inputs, max_new_tokens=60, do_sample=True, temperature=0.5).tolist()

stock = generate()
with mmspec.enable(model, "backoff", order=2, k=4) as spec:
    ours = generate()
assert ours == stock, "not the same output"
assert "generate" not in vars(model)
print(mmspec.__file__, spec.method, spec.report.accepted, spec.report.rounds, sep="|")
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return Environment(tmp_path_factory.mktemp("clean"), CODE, MODELS, THEIRS, POSE)


@pytest.mark.slow
def test_it_is_found_beside_our_wheel(environment: Environment) -> None:
    run = environment.python("-m", "mmspec", "plugins", "--json")
    found = {plugin["name"]: plugin for plugin in json.loads(run.stdout)}
    theirs, ours = found["backoff"], found["text"]
    assert (theirs["status"], theirs["distribution"], theirs["version"]) == ("ok", "mmspec-backoff", "2.3")
    assert Path(theirs["location"]) == environment.site / "mmspec_backoff" / "plugin.py"
    assert Path(ours["location"]) == environment.site / "mmspec_text" / "plugin.py" and ours["status"] == "ok"
    assert [c["name"] for c in theirs["components"]] == ["backoff", "backoff", "backoff-bold"]


@pytest.mark.slow
def test_its_command_is_there(environment: Environment) -> None:
    run = environment.python("-m", "mmspec", "backoff", "to be or not to be or", "-k", "3", "--order", "2")
    assert run.stdout.strip() == "not to be", run.stderr


@pytest.mark.slow
def test_poses_beside_a_text_are_plain_decodings(environment: Environment) -> None:
    """A head of theirs reads the hidden states of the text, through the public surface alone."""
    said = [environment.python("-m", "mmspec", "pose", "--method", method) for method in ("plain", "token-recycling")]
    plain, fast = (run.stdout.splitlines() for run in said)
    assert plain[0] == fast[0] and plain[1].endswith("40 tokens in 39 rounds"), said[0].stderr + said[1].stderr
    assert fast[1].split(",")[0] == plain[1].split(",")[0] != "0 poses" and fast[1] != plain[1]


@pytest.mark.slow
def test_our_wheel_can_write_a_plugin(environment: Environment) -> None:
    run = environment.python("-m", "mmspec", "new", "leaf", "--kind", "rule")
    assert run.returncode == 0 and (environment.folder / "mmspec-leaf" / "mmspec_leaf.py").is_file(), run.stderr


@pytest.mark.slow
def test_it_keeps_its_promises(environment: Environment) -> None:
    run = environment.python("-m", "mmspec", "check", "backoff")
    assert run.returncode == 0, run.stdout + run.stderr
    assert "drafter backoff:backoff" in run.stdout and "method backoff:backoff-bold" in run.stdout
    assert "2 made" in run.stdout, "the examples of its own package were not tried"


@pytest.mark.slow  # of the first one the same checks again, as tests
@pytest.mark.parametrize("project", [THEIRS, POSE], ids=lambda project: project.name)
def test_their_own_tests_pass(project: Path, environment: Environment) -> None:
    folder = environment.folder / project.name
    shutil.copytree(project / "tests", folder)
    run = environment.python("-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder))
    assert run.returncode == 0 and "passed" in run.stdout, run.stdout[-3000:]


@pytest.mark.slow
def test_it_speculates_on_a_shipped_model_without_changing_its_output(environment: Environment) -> None:
    run = environment.python("-c", USE)
    assert run.returncode == 0, run.stderr
    where, method, accepted, rounds = run.stdout.strip().split("|")
    assert Path(where) == environment.site / "mmspec" / "__init__.py" and method == "backoff"
    assert int(accepted) > 0 and int(rounds) < 59
