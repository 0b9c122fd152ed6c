"""Tiny random LlamaGens: a class and a caption model of 4 × 4 codes, alone and as whole pipelines."""

import pytest
import torch

from mmspec.kits.pictures.models.captions import CaptionEncoder
from mmspec_image.models.llamagen import LlamaGenTransformer
from mmspec_image.pipeline import TextToImagePipeline
from tests.support.picture_pipes import caption_tokenizer, janus_words, llamagen_vq, quiet, sharp

SIZES = dict(vocab_size=24, grid=4, dim=32, n_layer=2, n_head=4, n_kv_head=2, multiple_of=16)
WORDS = ["<pad>", "<unk>", "red", "blue", "heart", "cat", "face", "apple", "star"]


@pytest.fixture(scope="session")
def by_class():
    return sharp(LlamaGenTransformer(**SIZES, num_classes=5))


@pytest.fixture(scope="session")
def by_caption():
    torch.manual_seed(0)  # the null caption is drawn when the model is made
    return sharp(LlamaGenTransformer(**SIZES, model_type="t2i", caption_dim=12, cls_token_num=6))


@pytest.fixture(scope="session")
def words():
    return caption_tokenizer(WORDS, 6)


@pytest.fixture(scope="session")
def janus_processor():
    """For a `tiny_janus` of 16 cells."""
    return janus_words(16)


@pytest.fixture(scope="session")
def small_vq():
    """24 codes."""
    return llamagen_vq(24)


@pytest.fixture(scope="session")
def tiny(by_caption, small_vq, words):
    """Captions to pictures of 8 × 8 pixels. Who chooses a method takes `TextToImagePipeline(**tiny.components)`."""
    torch.manual_seed(3)
    encoder = CaptionEncoder(len(WORDS), 6, 12, layers=1, heads=2)
    encoder.tokens.weight.data.mul_(3)  # captions that differ, differ clearly
    return quiet(TextToImagePipeline(by_caption, small_vq, encoder.eval(), words).use("gs-sjd", k=6))


@pytest.fixture(scope="session")
def tiny_classes(by_class, small_vq):
    return quiet(TextToImagePipeline(by_class, small_vq).use("gs-sjd", k=6))


@pytest.fixture(scope="session")
def saved(tiny, tmp_path_factory):
    """A folder that `save_pretrained` wrote."""
    place = tmp_path_factory.mktemp("tiny")
    tiny.save_pretrained(place)
    return place
