"""Tiny random LlamaGens: a class and a caption model of 4 × 4 codes, alone and as whole pipelines."""

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import JanusImageProcessor, JanusProcessor, PreTrainedTokenizerFast

from mmspec.kits.pictures.models.captions import CaptionEncoder
from mmspec.kits.pictures.models.vq import LlamaGenVQ
from mmspec_image.models.llamagen import LlamaGenTransformer
from mmspec_image.pipeline import TextToImagePipeline

SIZES = dict(vocab_size=24, grid=4, dim=32, n_layer=2, n_head=4, n_kv_head=2, multiple_of=16)
WORDS = ["<pad>", "<unk>", "red", "blue", "heart", "cat", "face", "apple", "star"]


def sharp(model):
    """Weights large enough that codes depend on what stands before them."""
    torch.manual_seed(1)
    for weights in model.parameters():
        weights.data.copy_(torch.randn_like(weights) * (0.4 if weights.dim() > 1 else 1.0))
    return model.eval()


@pytest.fixture(scope="session")
def by_class():
    return sharp(LlamaGenTransformer(**SIZES, num_classes=5))


@pytest.fixture(scope="session")
def by_caption():
    torch.manual_seed(0)  # the null caption is drawn when the model is made
    return sharp(LlamaGenTransformer(**SIZES, model_type="t2i", caption_dim=12, cls_token_num=6))


@pytest.fixture(scope="session")
def words():
    """A tokenizer of whole words, padded on the left."""
    known = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    known.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = dict(pad_token="<pad>", unk_token="<unk>", padding_side="left", model_max_length=6)
    return PreTrainedTokenizerFast(tokenizer_object=known, **special)


@pytest.fixture(scope="session")
def janus_processor():
    """Whole words, for a `tiny_janus` of 16 codes."""
    known = ["<pad>", "<bos>", "<boi>", "a", "red", "fox", "blue", "bird", "<image>", "<eoi>", "<unk>"]
    known += ["<|User|>:", "<|Assistant|>:", "Say:"]
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(known)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    marks = {"image_token": "<image>", "boi_token": "<boi>", "eoi_token": "<eoi>"}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", bos_token="<bos>", unk_token="<unk>", extra_special_tokens=marks
    )
    return JanusProcessor(JanusImageProcessor(), tokenizer, num_image_tokens=16)


@pytest.fixture(scope="session")
def small_vq():
    """24 codes, two pixels a code."""
    torch.manual_seed(2)
    return LlamaGenVQ(24, ch=32, encoder_ch_mult=(1, 1), decoder_ch_mult=(1, 1), z_channels=32, num_res_blocks=1).eval()


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


def quiet(pipe):
    pipe.set_progress_bar_config(disable=True)
    return pipe
