"""The mark of tests in bfloat16 that need oneDNN's products."""

import pytest
import torch

HALF = pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="oneDNN multiplies no bfloat16 on this processor"
)
