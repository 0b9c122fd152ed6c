"""Official files in every wrapper, what does not fit refused by name, and the comparison with fixtures."""

import json

import pytest
import torch
from safetensors.torch import save_file

from mmspec.kits.pictures.models.vq import LlamaGenVQ, renamed
from mmspec.testing.parity import compare
from mmspec_image.layouts import run_llamagen
from mmspec_image.models.llamagen import HEADS, LlamaGenTransformer
from tests.support.published_vq import published

SMALL = dict(grid=4, n_head=4)


def state_of(model):
    return {key: value.clone() for key, value in model.state_dict().items()}


@pytest.mark.parametrize("wrapped", ["bare", "model", "module", "state_dict", "compiled", "after generation", "file"])
def test_every_wrapper_gives_the_same_model(by_caption, wrapped, tmp_path):
    state = source = state_of(by_caption)
    if wrapped in ("model", "module", "state_dict"):
        source = {wrapped: state, "steps": 7}
    elif wrapped == "compiled":
        source = {f"module._orig_mod.{key}": value for key, value in state.items()}
    elif wrapped == "after generation":
        source = {**state, "layers.0.attention.kv_cache.k_cache": torch.zeros(2), "freqs_cis": torch.zeros(1)}
    elif wrapped == "file":
        source = tmp_path / "official.pt"
        torch.save({"model": state}, source)
    loaded = LlamaGenTransformer.from_official(source, **SMALL)
    assert loaded.config.model_type == "t2i" and loaded.config.n_kv_head == 2 and loaded.config.cls_token_num == 6
    assert all(torch.equal(a, state[key]) for key, a in loaded.state_dict().items())


def test_what_does_not_fit_is_refused(by_class):
    state = state_of(by_class)
    with pytest.raises(ValueError, match="no published size: say n_head="):
        LlamaGenTransformer.from_official(state)
    lacking = {key: value for key, value in state.items() if key != "norm.weight"}
    with pytest.raises(ValueError, match=r"1 keys missing \(norm.weight\)"):
        LlamaGenTransformer.from_official(lacking, **SMALL)
    with pytest.raises(ValueError, match=r"1 keys unexpected \(strange\)"):
        LlamaGenTransformer.from_official({**state, "strange": torch.zeros(1)}, **SMALL)
    with pytest.raises(ValueError, match="no weights of a LlamaGen transformer"):
        LlamaGenTransformer.from_official({"x": torch.zeros(1)})
    with pytest.raises(ValueError, match="there is no file"):
        LlamaGenVQ.from_official("nowhere.pt")


def test_a_pickle_that_runs_code_is_not_read(tmp_path):
    class Evil:
        def __reduce__(self):
            return (print, ("run",))

    torch.save({"model": Evil()}, tmp_path / "evil.pt")
    with pytest.raises(ValueError, match=r"evil.pt: it holds objects beside its weights .*, which can run code"):
        LlamaGenTransformer.from_official(tmp_path / "evil.pt", **SMALL)


@pytest.mark.parametrize(
    ("size", "millions", "more"),
    [
        ((768, 12), 110.89, {}),
        ((1280, 36), 777.68, {"model_type": "t2i", "cls_token_num": 120}),
    ],
)
def test_published_sizes_have_their_parameters(size, millions, more):
    with torch.device("meta"):
        model = LlamaGenTransformer(dim=size[0], n_layer=size[1], n_head=HEADS[size], **more)
    assert sum(p.numel() for p in model.parameters()) / 1e6 == pytest.approx(millions, abs=0.01)


def test_vq16_has_the_published_keys():
    with torch.device("meta"):
        model = LlamaGenVQ().state_dict()
        state = published(model)
    again = renamed(state)
    assert again.keys() == model.keys() and all(again[key].shape == value.shape for key, value in model.items())
    assert len(state) == 343  # 344 with `quantize.codebook_used`, which only training reads
    assert sum(t.numel() for t in state.values()) / 1e6 == pytest.approx(71.88, abs=0.07)
    assert state["decoder.conv_blocks.4.res.2.conv2.weight"].shape == (128, 128, 3, 3)
    assert state["encoder.conv_blocks.2.res.0.nin_shortcut.weight"].shape == (256, 128, 1, 1)


def test_parity_compares_every_output_and_lists_what_it_skips(by_class, tmp_path):
    codes, classes = torch.randint(24, (2, 16)), torch.tensor([0, 3])
    config = {"block_size": 16, "n_head": 4}
    with torch.no_grad():
        io = {"cond": classes, "idx": codes}
        io |= {key: t.contiguous() for key, t in run_llamagen(state_of(by_class), io, config).items()}
    fixture = {f"state.{k}": t for k, t in state_of(by_class).items()} | {f"io.{k}": t for k, t in io.items()}
    save_file(fixture, tmp_path / "llamagen_c2i.safetensors", {"config": json.dumps(config)})
    save_file(fixture, tmp_path / "unheard_of.safetensors", {"config": "{}"})
    logits, greedy, skipped = compare(tmp_path)
    assert (logits.output, greedy.output) == ("logits", "greedy_cfg3") and logits.error == greedy.error == 0
    assert skipped.architecture == "unheard_of" and "skipped" in skipped.note and skipped.holds
    fixture["io.logits"] = fixture["io.logits"] * 1.001
    save_file(fixture, tmp_path / "llamagen_c2i.safetensors", {"config": json.dumps(config)})
    assert not next(compare(tmp_path)).holds


def test_pictures_become_codes_and_pictures_again():
    torch.manual_seed(0)
    vq = LlamaGenVQ(16, ch=32, encoder_ch_mult=(1, 1), decoder_ch_mult=(1, 1), z_channels=32, num_res_blocks=1).eval()
    pictures = torch.rand(2, 3, 8, 8) * 2 - 1
    made, quantised = vq(pictures)
    assert made.shape == pictures.shape and quantised.codes.shape == (2, 4, 4) and vq.factor == 2
    torch.testing.assert_close(vq.decode(quantised.codes), made, rtol=1e-4, atol=1e-4)
    (made.mean() + quantised.loss).backward()
    assert all(p.grad is not None for p in vq.parameters()), "gradients go through the codebook"
