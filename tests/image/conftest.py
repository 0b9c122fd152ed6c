"""Tiny random LlamaGens: a class and a caption model of 4 × 4 codes."""

import pytest
import torch

from mmspec_image.models.llamagen import LlamaGenTransformer

SIZES = dict(vocab_size=24, grid=4, dim=32, n_layer=2, n_head=4, n_kv_head=2, multiple_of=16)


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
