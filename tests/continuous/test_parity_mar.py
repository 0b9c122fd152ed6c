"""`mmspec check --parity DIR`: our MAR against a second reading of the maths (`parity/published_mar.py`)."""

import json
import shutil
from pathlib import Path

import pytest
import torch
import typer
from safetensors.torch import save_file

from mmspec.cli.check import check
from mmspec.testing.parity import read

FIXTURES = Path(__file__).parent / "parity"
OUTPUTS = {"encoder", "z", "net", "net_cfg2p5", "step4_mean", "step4_log_variance"}


def rows(folder, capsys):
    """The exit code, and what `--json` says: output to the row."""
    capsys.readouterr()
    with pytest.raises(typer.Exit) as left:
        check(parity=folder, json=True)
    return left.value.exit_code, {row["output"]: row for row in json.loads(capsys.readouterr().out)}


def test_our_model_agrees_with_the_published_maths(capsys):
    code, found = rows(FIXTURES, capsys)
    assert code == 0 and found.keys() == OUTPUTS
    assert all(row["status"] == "pass" and row["error"] < 1e-5 for row in found.values())


@pytest.mark.parametrize(
    ("weight", "failing"),
    [
        ("fake_latent", set()),
        ("z_proj_ln.bias", OUTPUTS),
        ("mask_token", OUTPUTS - {"encoder"}),
        ("diffloss.net.time_embed.mlp.2.weight", OUTPUTS - {"encoder", "z"}),
    ],
)
def test_a_weight_that_is_off_is_seen(tmp_path, capsys, weight, failing):
    shutil.copy(FIXTURES / "mar.safetensors", tmp_path)
    state, io, config = read(tmp_path / "mar.safetensors")
    held = {f"state.{k}": t.flip(-1) if k == weight else t for k, t in state.items()}
    held |= {f"io.{k}": t for k, t in io.items()}
    metadata = {"config": json.dumps(config)}
    save_file({key: t.contiguous() for key, t in held.items()}, tmp_path / "mar.safetensors", metadata)
    code, found = rows(tmp_path, capsys)
    assert code == bool(failing) and {name for name, row in found.items() if row["status"] == "fail"} == failing


def test_the_kept_fixture_is_what_the_script_makes(monkeypatch):
    monkeypatch.syspath_prepend(FIXTURES)
    import make_mar

    state, io, config = read(FIXTURES / "mar.safetensors")
    steps, fresh = make_mar.fixture()
    assert config == make_mar.CONFIG and state.keys() == steps.keys() and io.keys() == fresh.keys()
    assert all(torch.equal(state[key], made * make_mar.STEP) for key, made in steps.items())
    for name in OUTPUTS:
        torch.testing.assert_close(fresh[name], io[name], rtol=1e-4, atol=1e-4)
    assert (FIXTURES / "mar.safetensors").stat().st_size < 40_000
