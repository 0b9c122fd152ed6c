"""KL-16 with latent diffusion's names, as an independent implementation, against diffusers' autoencoder."""

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F

from mmspec_continuous.models.kl16 import kl16_from_official, kl16_sizes, renamed

GROUPS = 4
TINY = dict(widths=(8, 8, 16), blocks=2, latents=3)
PUBLISHED = dict(widths=(128, 128, 256, 256, 512), blocks=2, latents=16)


def shapes(widths, blocks, latents):
    """Shapes under latent diffusion's names; the encoder's last level has attention."""
    made = {}

    def conv(name, enters, leaves, size=3):
        made.update({f"{name}.weight": (leaves, enters, size, size), f"{name}.bias": (leaves,)})

    def norm(name, width):
        made.update({f"{name}.weight": (width,), f"{name}.bias": (width,)})

    def residual(name, enters, leaves):
        norm(f"{name}.norm1", enters)
        conv(f"{name}.conv1", enters, leaves)
        norm(f"{name}.norm2", leaves)
        conv(f"{name}.conv2", leaves, leaves)
        if enters != leaves:
            conv(f"{name}.nin_shortcut", enters, leaves, 1)

    def attention(name, width):
        norm(f"{name}.norm", width)
        for part in ("q", "k", "v", "proj_out"):
            conv(f"{name}.{part}", width, width, 1)

    def middle(half, width):
        residual(f"{half}.mid.block_1", width, width)
        attention(f"{half}.mid.attn_1", width)
        residual(f"{half}.mid.block_2", width, width)

    deepest, last = widths[-1], len(widths) - 1
    conv("encoder.conv_in", 3, widths[0])
    for level, (enters, leaves) in enumerate(pairwise((widths[0], *widths))):
        for i in range(blocks):
            residual(f"encoder.down.{level}.block.{i}", leaves if i else enters, leaves)
            if level == last:
                attention(f"encoder.down.{level}.attn.{i}", leaves)
        if level < last:
            conv(f"encoder.down.{level}.downsample.conv", leaves, leaves)
    middle("encoder", deepest)
    norm("encoder.norm_out", deepest)
    conv("encoder.conv_out", deepest, 2 * latents)
    conv("quant_conv", 2 * latents, 2 * latents, 1)
    conv("post_quant_conv", latents, latents, 1)
    conv("decoder.conv_in", latents, deepest)
    middle("decoder", deepest)
    for level, (leaves, enters) in enumerate(zip(widths, (*widths[1:], deepest), strict=True)):
        for i in range(blocks + 1):
            residual(f"decoder.up.{level}.block.{i}", leaves if i else enters, leaves)
        if level:
            conv(f"decoder.up.{level}.upsample.conv", leaves, leaves)
    norm("decoder.norm_out", widths[0])
    conv("decoder.conv_out", widths[0], 3)
    return made


def conv(state, name, x, **how):
    return F.conv2d(x, state[f"{name}.weight"], state[f"{name}.bias"], **how)


def group(state, name, x):
    return F.group_norm(x, GROUPS, state[f"{name}.weight"], state[f"{name}.bias"], 1e-6)


def residual(state, name, x):
    h = conv(state, f"{name}.conv1", F.silu(group(state, f"{name}.norm1", x)), padding=1)
    h = conv(state, f"{name}.conv2", F.silu(group(state, f"{name}.norm2", h)), padding=1)
    return h + (conv(state, f"{name}.nin_shortcut", x) if f"{name}.nin_shortcut.weight" in state else x)


def attended(state, name, x):
    """Self-attention over all pixels."""
    h = group(state, f"{name}.norm", x)
    query, key, value = (conv(state, f"{name}.{part}", h).flatten(2) for part in "qkv")
    weights = (query.mT @ key / query.shape[1] ** 0.5).softmax(-1)
    return x + conv(state, f"{name}.proj_out", (value @ weights.mT).unflatten(2, x.shape[2:]))


def middle(state, half, x):
    x = attended(state, f"{half}.mid.attn_1", residual(state, f"{half}.mid.block_1", x))
    return residual(state, f"{half}.mid.block_2", x)


def finished(state, half, x):
    return conv(state, f"{half}.conv_out", F.silu(group(state, f"{half}.norm_out", x)), padding=1)


def moments(state, pictures, widths, blocks, **_):
    x = conv(state, "encoder.conv_in", pictures, padding=1)
    for level in range(len(widths)):
        for i in range(blocks):
            x = residual(state, f"encoder.down.{level}.block.{i}", x)
            if level == len(widths) - 1:
                x = attended(state, f"encoder.down.{level}.attn.{i}", x)
        if level < len(widths) - 1:
            x = conv(state, f"encoder.down.{level}.downsample.conv", F.pad(x, (0, 1, 0, 1)), stride=2)
    return conv(state, "quant_conv", finished(state, "encoder", middle(state, "encoder", x)))


def decoded(state, z, widths, blocks, **_):
    x = middle(state, "decoder", conv(state, "decoder.conv_in", conv(state, "post_quant_conv", z), padding=1))
    for level in reversed(range(len(widths))):
        for i in range(blocks + 1):
            x = residual(state, f"decoder.up.{level}.block.{i}", x)
        if level:
            x = x.repeat_interleave(2, 2).repeat_interleave(2, 3)
            x = conv(state, f"decoder.up.{level}.upsample.conv", x, padding=1)
    return finished(state, "decoder", x)


@pytest.fixture(scope="module")
def state():
    """Weights large enough that what comes out depends on all of them."""
    generator = torch.Generator().manual_seed(5)
    return {key: torch.randn(shape, generator=generator) * 0.3 for key, shape in shapes(**TINY).items()}


@pytest.mark.parametrize("wrapped", ["bare", "file with a discriminator"])
def test_pictures_and_latents_are_those_of_the_published_maths(state, wrapped, tmp_path):
    source = state
    if wrapped != "bare":
        source = tmp_path / "kl16.ckpt"
        torch.save({"model": {**state, "loss.discriminator.main.0.weight": torch.zeros(2)}, "epoch": 3}, source)
    vae = kl16_from_official(source, norm_num_groups=GROUPS)
    assert vae.config.scaling_factor == 0.2325 and not vae.training
    pictures = torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(6)) * 2 - 1
    with torch.no_grad():
        wanted = moments(state, pictures, **TINY)
        found = vae.encode(pictures).latent_dist
        torch.testing.assert_close(found.parameters, wanted, rtol=1e-4, atol=1e-4)
        latents = wanted[:, :3]
        torch.testing.assert_close(vae.decode(latents).sample, decoded(state, latents, **TINY), rtol=1e-4, atol=1e-4)
    assert latents.shape == (2, 3, 4, 4) and wanted.std() > 0.1


def test_the_published_file_fits_name_by_name():
    from diffusers import AutoencoderKL

    with torch.device("meta"):
        state = {key: torch.empty(shape) for key, shape in shapes(**PUBLISHED).items()}
        own = AutoencoderKL(**kl16_sizes(state)).state_dict()
    assert len(state) == 312 and sum(t.numel() for t in state.values()) / 1e6 == pytest.approx(66.46, abs=0.01)
    assert state["decoder.up.3.block.0.nin_shortcut.weight"].shape == (256, 512, 1, 1)
    assert {key: t.shape for key, t in renamed(state).items()} == {key: t.shape for key, t in own.items()}


def test_what_does_not_fit_is_refused(state):
    lacking = {key: value for key, value in state.items() if key != "decoder.up.2.upsample.conv.weight"}
    with pytest.raises(ValueError, match=r"1 keys missing \(decoder.up_blocks.0.upsamplers.0.conv.weight\)"):
        kl16_from_official(lacking, norm_num_groups=GROUPS)
    with pytest.raises(ValueError, match=r"1 keys unexpected \(strange\)"):
        kl16_from_official({**state, "strange": torch.zeros(1)}, norm_num_groups=GROUPS)
    with pytest.raises(ValueError, match="no weights of a KL autoencoder"):
        kl16_from_official({"x": torch.zeros(1)})
    with pytest.raises(ValueError, match="there is no file"):
        kl16_from_official("nowhere.ckpt")
