"""Tiny random models over 4 × 4 continuous tokens, alone and as a whole pipeline."""

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from mmspec.kits.pictures.models.captions import CaptionEncoder
from mmspec_continuous.pipeline import ContinuousTextToImagePipeline, mark
from tests.support.examples.continuous import tiny
from tools.train.pictures.latents import measure, small_kl

WORDS = ["<pad>", "<unk>", "red", "blue", "heart", "cat", "face", "apple", "star"]
SIZES = dict(grid=4, caption_dim=12, cls_token_num=6, token_dim=4)


@pytest.fixture(scope="session")
def words():
    """A tokenizer of whole words, padded on the left."""
    known = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    known.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = dict(pad_token="<pad>", unk_token="<unk>", padding_side="left", model_max_length=6)
    return PreTrainedTokenizerFast(tokenizer_object=known, **special)


@pytest.fixture(scope="session")
def small_vae():
    """An autoencoder with 4 numbers per token and 2 × 2 pixels per token."""
    torch.manual_seed(2)
    vae = small_kl(4, 8, (8, 8), groups=4).eval()
    measure(vae, 3 + 2 * torch.randn(50, 16, 4))
    return vae


@pytest.fixture(scope="session")
def pipe(small_vae, words):
    """A pipeline from captions to pictures of 8 × 8 pixels; tests that choose a method make their own of its parts."""
    torch.manual_seed(3)
    encoder = CaptionEncoder(len(WORDS), 6, 12, layers=1, heads=2)
    encoder.tokens.weight.data.mul_(3)  # so that different captions have clearly different features
    transformer = tiny(**SIZES, latents=mark(small_vae))
    made = ContinuousTextToImagePipeline(transformer, small_vae, encoder.eval(), words)
    made.set_progress_bar_config(disable=True)
    return made.use("reflection", k=6)
