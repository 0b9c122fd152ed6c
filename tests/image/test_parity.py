"""`mmspec check --parity DIR`: our models against a second reading of the maths (`parity/published_llamagen.py`)."""

import json
import shutil
from pathlib import Path

import pytest
import torch
import typer
from safetensors.torch import save_file

from mmspec.cli.check import check
from mmspec.testing.parity import compare, read

FIXTURES = Path(__file__).parent / "parity"


@pytest.fixture
def made(monkeypatch):
    """The module that makes fixtures."""
    monkeypatch.syspath_prepend(FIXTURES)
    import make_fixtures

    return make_fixtures


@pytest.fixture
def folder(tmp_path, made):
    """The fixtures of three architectures, and one of none."""
    for file in FIXTURES.glob("*.safetensors"):
        shutil.copy(file, tmp_path)
    made.write_tokenizer(tmp_path / "llamagen_vq.safetensors")
    save_file({"io.x": torch.zeros(1)}, tmp_path / "unheard_of.safetensors", {"config": "{}"})
    return tmp_path


def changed(folder, stem, **tensors):
    """Write a fixture again with other tensors; None leaves one out."""
    file = folder / f"{stem}.safetensors"
    state, io, config = read(file)
    held = {f"state.{k}": t for k, t in state.items()} | {f"io.{k}": t for k, t in io.items()}
    held |= {key.replace("__", "."): tensor for key, tensor in tensors.items()}
    save_file({key: t.contiguous() for key, t in held.items() if t is not None}, file, {"config": json.dumps(config)})


def rows(folder, capsys):
    """The exit code, and what `--json` says: (architecture, output) to the row."""
    capsys.readouterr()
    with pytest.raises(typer.Exit) as left:
        check(parity=folder, json=True)
    return left.value.exit_code, {(r["architecture"], r["output"]): r for r in json.loads(capsys.readouterr().out)}


def test_our_models_agree_with_the_published_maths(folder, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    with pytest.raises(typer.Exit) as left:
        check(parity=folder)
    lines = capsys.readouterr().out.splitlines()
    assert left.value.exit_code == 0
    assert lines[-1] == "fixtures: 4, outputs: 7: 7 pass, 1 skip"
    assert [line.split()[:2] for line in lines if "logits" in line] == [
        ["llamagen_c2i", "logits"],
        ["llamagen_t2i", "logits"],
    ]
    assert any(line.startswith("unheard_of") and "no installed plugin" in line for line in lines)
    code, found = rows(folder, capsys)
    assert code == 0 and found["unheard_of", ""]["status"] == "skip"
    assert {output for _, output in found} == {
        "logits", "greedy_cfg3", "greedy_cfg3_masked", "decoded", "image_codes", "",
    }  # fmt: skip
    assert all(row["error"] < 1e-5 for row in found.values() if row["status"] == "pass")


@pytest.mark.parametrize(
    ("stem", "weight", "failing"),
    [
        ("llamagen_c2i", "layers.1.attention.wqkv.weight", "logits"),
        ("llamagen_t2i", "cls_embedding.uncond_embedding", "greedy_cfg3"),
        ("llamagen_vq", "decoder.conv_blocks.0.upsample.conv.weight", "decoded"),
        ("llamagen_vq", "encoder.conv_blocks.0.downsample.conv.weight", "image_codes"),
    ],
)
def test_a_weight_that_is_off_is_seen(folder, capsys, stem, weight, failing):
    state = read(folder / f"{stem}.safetensors")[0]
    changed(folder, stem, **{f"state.{weight}": state[weight].flip(0)})
    code, found = rows(folder, capsys)
    assert code == 1 and found[stem, failing]["status"] == "fail" and found[stem, failing]["note"]


def test_wrong_outputs_are_seen(folder, capsys):
    io = read(folder / "llamagen_t2i.safetensors")[1]
    greedy = io["greedy_cfg3"].clone()
    greedy[1, 3] += 1
    changed(folder, "llamagen_t2i", io__logits=io["logits"] * 1.0002, io__greedy_cfg3=greedy)
    changed(folder, "llamagen_c2i", io__logits=torch.full((2, 16, 24), torch.nan))
    code, found = rows(folder, capsys)
    assert code == 1
    assert found["llamagen_t2i", "logits"]["error"] == pytest.approx(2e-4, rel=0.01)
    assert found["llamagen_t2i", "logits"]["note"] == "more than 1e-04"
    assert found["llamagen_t2i", "greedy_cfg3"]["error"] == pytest.approx(1 / 32)
    assert found["llamagen_t2i", "greedy_cfg3_masked"]["status"] == "pass"
    assert found["llamagen_c2i", "logits"]["note"] == "not finite"


def test_nothing_is_left_out_in_silence(folder, capsys):
    changed(folder, "llamagen_c2i", io__logits=None, io__hidden=torch.zeros(3))
    changed(folder, "llamagen_t2i", io__logits=torch.zeros(2, 15, 24))
    changed(folder, "llamagen_vq", **{"state.quant_conv.bias": None})
    (folder / "llamagen_c2i_damaged.safetensors").write_bytes(b"no")
    code, found = rows(folder, capsys)
    assert code == 1
    assert found["llamagen_c2i", "logits"]["note"] == "not in the fixture"
    assert "nothing computes it" in found["llamagen_c2i", "hidden"]["note"]
    assert found["llamagen_t2i", "logits"]["note"] == "shape [2, 16, 24], not [2, 15, 24]"
    assert "1 keys missing (quant_conv.bias)" in found["llamagen_vq", ""]["note"]
    (folder / "llamagen_vq.safetensors").write_bytes(b"no")
    notes = [e.note for e in compare(folder) if e.architecture == "llamagen_vq"]
    assert len(notes) == 1 and notes[0].startswith("SafetensorError")


def test_a_folder_without_fixtures_or_a_name_beside_it_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"there are no \*\.safetensors fixtures in"):
        check(parity=tmp_path)
    with pytest.raises(typer.BadParameter, match="leave out 'image'"):
        check("image", parity=tmp_path)


def test_the_kept_fixtures_are_what_the_script_makes(made):
    import published_llamagen

    for captions, stem in ((False, "llamagen_c2i"), (True, "llamagen_t2i")):
        state, io, config = read(FIXTURES / f"{stem}.safetensors")
        fresh = made.drawn(made.transformer(captions), torch.Generator().manual_seed(7 + captions))
        assert state.keys() == fresh.keys() and all(torch.equal(state[k], t * made.STEP) for k, t in fresh.items())
        scores = published_llamagen.logits(state, config, io["cond"][1], io["idx"][1, :3])
        torch.testing.assert_close(scores, io["logits"][1, :4], rtol=1e-4, atol=1e-4)
        assert (FIXTURES / f"{stem}.safetensors").stat().st_size < 60_000
