"""open-oasis's models against a second reading of the maths (`parity/published_oasis.py`), and what files may hold."""

from pathlib import Path

import pytest
import torch

from mmspec.testing.parity import architectures, compared, read
from mmspec_video.models.oasis import OasisDiT
from mmspec_video.models.oasis_vae import OasisVAE

FIXTURES = Path(__file__).parent / "parity"


def fixture(stem):
    return read(FIXTURES / f"{stem}.safetensors")


@pytest.mark.parametrize("stem", ["oasis_dit", "oasis_vae"])
def test_our_models_agree_with_the_published_maths(stem):
    agreements = list(compared(FIXTURES / f"{stem}.safetensors", architectures()[stem]))
    assert {a.output for a in agreements} == ({"v"} if stem == "oasis_dit" else {"decoded", "posterior_mean"})
    assert all(a.holds and a.error < 1e-5 for a in agreements)


@pytest.mark.parametrize("stem", ["oasis_dit", "oasis_vae"])
def test_the_kept_fixtures_are_what_the_script_makes(stem, monkeypatch):
    monkeypatch.syspath_prepend(FIXTURES)
    import make_oasis

    state, io, config = fixture(stem)
    drawn = make_oasis.drawn

    def the_kept(shapes, generator):
        """On another processor a draw may fall on the other side of a step, which is a weight in a thousand at most."""
        fresh = drawn(shapes, generator)
        kept = {key: (weight / make_oasis.STEP).round() for key, weight in state.items()}
        assert kept.keys() == fresh.keys()
        off = torch.cat([(kept[key] - steps).flatten() for key, steps in fresh.items()]).abs()
        assert off.max() <= 1 and off.mean() < 1e-3
        return kept

    monkeypatch.setattr(make_oasis, "drawn", the_kept)
    _, made, sizes = make_oasis.fixture(stem)
    assert config == sizes and io.keys() == made.keys()
    for name, tensor in made.items():
        torch.testing.assert_close(tensor, io[name], rtol=1e-4, atol=1e-4)
    assert (FIXTURES / f"{stem}.safetensors").stat().st_size < 120_000


@pytest.mark.parametrize(
    "weight", ["blocks.1.t_attn.to_qkv", "blocks.0.s_attn.to_out", "blocks.1.s_adaLN_modulation.1"]
)
def test_a_weight_that_is_off_is_seen(weight):
    state, io, config = fixture("oasis_dit")
    state[f"{weight}.weight"] = state[f"{weight}.weight"].flip(0)
    made = OasisDiT.from_official(state, **config)(io["x"], io["t"], io["actions"])
    assert (made - io["v"]).abs().max() > 1e-2 * io["v"].abs().max()


@pytest.mark.parametrize("kept", ["nowhere", "on top", "everywhere"])
def test_rotary_frequencies_are_optional(kept):
    state, io, config = fixture("oasis_dit")
    if kept != "nowhere":
        state |= {f"{axis}_rotary_emb.freqs": torch.ones(4) for axis in ("spatial", "temporal")}
    if kept == "everywhere":
        state |= {f"blocks.{i}.{axis}_attn.rotary_emb.freqs": torch.ones(4) for i in range(2) for axis in "st"}
    made = OasisDiT.from_official({"model": state}, **config)(io["x"], io["t"], io["actions"])
    torch.testing.assert_close(made, io["v"], rtol=1e-4, atol=1e-4)


def test_files_that_are_no_weights_of_it_are_refused():
    state, _, config = fixture("oasis_dit")
    with pytest.raises(ValueError, match="no weights of Oasis's transformer"):
        OasisDiT.from_official({"a.weight": torch.zeros(2)})
    with pytest.raises(ValueError, match="width 32 with 2 blocks is no published size: say num_heads="):
        OasisDiT.from_official(state)
    missing = {key: tensor for key, tensor in state.items() if key != "final_layer.linear.bias"}
    with pytest.raises(ValueError, match=r"1 keys missing \(final_layer.linear.bias\)"):
        OasisDiT.from_official(missing, **config)
    with pytest.raises(ValueError, match="of another shape"):
        OasisVAE.from_official(fixture("oasis_vae")[0], **fixture("oasis_vae")[2] | {"latent_dim": 4})


def test_the_published_sizes_have_the_published_number_of_weights():
    with torch.device("meta"):
        dit, vae = OasisDiT(), OasisVAE()
    # The official count of the transformer has two tensors more: the frequencies, which are computed here.
    assert len(dit.state_dict()) == 334 - 2 * 16 - 2 and len(vae.state_dict()) == 228
    assert round(sum(p.numel() for p in dit.parameters()) / 1e6, 1) == 607.9
    assert round(sum(p.numel() for p in vae.parameters()) / 1e6, 2) == 229.25


def test_a_later_frame_changes_nothing_before_it():
    state, io, config = fixture("oasis_dit")
    model = OasisDiT.from_official(state, **config)
    x, t = io["x"].clone(), io["t"].clone()
    x[:, 2] = torch.randn(2, 3, 4, 6, generator=torch.Generator().manual_seed(1))
    t[:, 2] = 3
    made = model(x, t, io["actions"])
    torch.testing.assert_close(made[:, :2], io["v"][:, :2], rtol=1e-4, atol=1e-4)
    assert (made[:, 2] - io["v"][:, 2]).abs().max() > 0.1
