"""A shipped folder is written whole or not at all."""

import json

import pytest

import mmspec
from mmspec.files import save_sealed
from mmspec.kits.pictures.models.vq import LlamaGenVQ
from mmspec_image.models.llamagen import LlamaGenTransformer
from mmspec_image.pipeline import TextToImagePipeline
from tools.train.pictures.ship import ship


@pytest.fixture(scope="module")
def tiny():
    sizes = dict(dim=32, n_layer=1, n_head=2, n_kv_head=2, multiple_of=16, num_classes=5)
    vq = LlamaGenVQ(24, ch=32, encoder_ch_mult=(1, 1), decoder_ch_mult=(1, 1), z_channels=32, num_res_blocks=1)
    return TextToImagePipeline(LlamaGenTransformer(vocab_size=24, grid=4, **sizes), vq)


def test_it_loads_with_its_facts_beside_it(tiny, tmp_path):
    folder = tmp_path / "drawn"
    save_sealed(folder, lambda side: (side.mkdir(), (side / "old").write_text("of an earlier training")))
    ship(tiny, {"parameters": 3}, folder, also=lambda side: (side / "more").write_text("1"))
    assert json.loads((folder / "training.json").read_text()) == {"parameters": 3}
    assert (folder / "more").exists() and not (folder / "old").exists()
    assert type(mmspec.Pipeline.from_pretrained(folder)) is type(tiny)


def test_what_fails_leaves_the_old_one(tiny, tmp_path):
    folder = tmp_path / "drawn"
    folder.mkdir()
    (folder / "old").write_text("of an earlier training")

    def fail(side):
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space"):
        ship(tiny, {}, folder, also=fail)
    assert [path.name for path in folder.iterdir()] == ["old"]
