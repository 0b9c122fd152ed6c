"""Our own encoder of the tokenizer: what is far from a code is nothing to it."""

import torch

from mmspec.kits.pictures.models.vq import LlamaGenVQ

SIZES = dict(ch=32, encoder_ch_mult=(1, 2, 4), decoder_ch_mult=(1, 2, 2), z_channels=32, num_res_blocks=1)


def test_a_cell_sees_eight_pixels_beyond_itself():
    torch.manual_seed(0)
    vq = LlamaGenVQ(64, **SIZES, local=True).eval()
    with torch.no_grad():
        blank = vq.encoder(torch.zeros(1, 3, 64, 64))
        assert torch.equal(blank, blank[..., :1, :1].expand_as(blank)), "blank cells are alike, at the edges too"
        marked = torch.zeros(1, 3, 64, 64)
        marked[..., 32:36, 40:44] = torch.randn(3, 4, 4)  # the pixels of cell 8, 10
        changed = (vq.encoder(marked) != blank).any(1)[0].nonzero()
    assert changed.amin(0).tolist() == [6, 8] and changed.amax(0).tolist() == [10, 12]


def test_it_is_saved_and_loaded(tmp_path):
    vq = LlamaGenVQ(64, **SIZES, local=True).eval()
    vq.save_pretrained(tmp_path)
    again = LlamaGenVQ.from_pretrained(tmp_path)
    pictures = torch.rand(2, 3, 32, 32) * 2 - 1
    (made, quantised), (own, codes) = again(pictures), vq(pictures)
    assert torch.equal(quantised.codes, codes.codes) and torch.equal(made, own)
    assert vq.factor == 4 and vq.encode(pictures).codes.shape == (2, 8, 8)
