"""`mmspec convert oasis`: the folder makes the frames that the published files make."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import mmspec
from mmspec.kits.pictures.layouts import layouts
from mmspec.testing.parity import read
from mmspec_video.models.oasis import OasisDiT
from mmspec_video.models.oasis_vae import OasisVAE
from mmspec_video.pipeline import NextFramePipeline

FIXTURES = Path(__file__).parent / "parity"
VECTORS = torch.eye(4, 5).tolist()
NAMES = ["stay", "left", "right", "jump"]
DIT = {"num_heads": 2, "input_h": 4, "input_w": 6, "max_frames": 4}
VAE = {"input_height": 16, "input_width": 24, "enc_heads": 2, "dec_heads": 2}
KNOWN = DIT | VAE | {"action_vectors": VECTORS, "actions": NAMES}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("published")
    state = read(FIXTURES / "oasis_dit.safetensors")[0]
    save_file(state | {"spatial_rotary_emb.freqs": torch.ones(4)}, folder / "oasis.safetensors")
    torch.save(read(FIXTURES / "oasis_vae.safetensors")[0], folder / "vit.pt")
    return folder / "oasis.safetensors", folder / "vit.pt"


def frames(pipe):
    pipe.set_progress_bar_config(disable=True)
    first = torch.rand(1, 1, 3, 16, 24, generator=torch.Generator().manual_seed(0))
    return pipe(first, ["left", "jump"], num_inference_steps=2, seed=5, output_type="pt").frames


def test_a_converted_folder_makes_the_frames_of_the_published_files(files, tmp_path):
    layouts()["oasis"].convert(files, tmp_path / "oasis", KNOWN)
    dit, vae = OasisDiT.from_official(files[0], **DIT), OasisVAE.from_official(files[1], **VAE)
    wanted = frames(NextFramePipeline(dit, vae, NAMES, action_vectors=VECTORS).use("plain"))
    made = frames(mmspec.Pipeline.from_pretrained(tmp_path / "oasis"))
    assert torch.equal(made, wanted) and wanted.std() > 0.01
    assert "layout: oasis" in (tmp_path / "oasis" / "README.md").read_text()


def test_what_does_not_fit_is_refused(files, tmp_path):
    oasis = layouts()["oasis"]
    with pytest.raises(ValueError, match="presets of actions have 25 numbers"):
        oasis.convert(files, tmp_path, DIT | VAE)
    with pytest.raises(ValueError, match=r"vit.pt \(the vae\): width 32 is no published size: say enc_heads="):
        oasis.convert(files, tmp_path, DIT | {"action_vectors": VECTORS})
    with pytest.raises(ValueError, match="it is the vae of 'oasis'"):
        layouts()["llamagen"].convert(files[1:], tmp_path, {"grid": 16})
    with pytest.raises(ValueError, match="say num_heads="):
        oasis.convert(files, tmp_path, VAE | {"action_vectors": VECTORS})
    with pytest.raises(ValueError, match="frames of 4 × 6 latents, and of 90 × 160"):
        oasis.convert(files, tmp_path, DIT | {"action_vectors": VECTORS, "enc_heads": 2, "dec_heads": 2})
    assert not any(tmp_path.iterdir())
