"""Our causal transformer over continuous tokens in raster order, after a caption; a head gives their distribution.

The transformer is LlamaGen's (arXiv 2406.06525) with a matrix in place of the embeddings. Its attention is causal, as
the core's cache needs it; MAR's (2406.11838) is bidirectional. Heads: `mmspec_continuous.models.denoiser`, and
mixtures of Gaussians.
"""

from collections.abc import Sequence
from typing import Any

import torch.nn.functional as F
from diffusers import ConfigMixin, ModelMixin
from diffusers.configuration_utils import register_to_config
from torch import Tensor, nn

from mmspec.core.distributions import GaussianMixture
from mmspec.kits.pictures.models.blocks import RMSNorm, grid_rotary, run_blocks, teacher_forced, transformer_blocks
from mmspec.kits.pictures.models.captions import CaptionEmbedder
from mmspec_continuous.models.denoiser import Denoiser


class MixtureHead(nn.Module):
    """A head of Gaussian mixtures: one matrix product, no denoising steps.

    GIVT (Tschannen et al., arXiv 2312.02116): weights, means and scales of K components with diagonal covariances. The
    distribution is known in closed form, so that a token costs one pass of the transformer. Guidance is refused: p^(1 +
    w) / p_null^w of two mixtures is no mixture, and cannot be drawn from or coupled exactly (GIVT approximates it, by
    one Gaussian per token or by rejection sampling).

    Tokens have `dim` numbers, the transformer's vectors `input_dim`. More `components` make sharper distributions.
    `least` is the smallest scale of a component, where tokens have about unit variance: if it is larger, more drafts
    are accepted, and tokens are noisier.
    """

    def __init__(self, dim: int, input_dim: int, components: int, least: float) -> None:
        super().__init__()
        self.dim, self.components, self.least = dim, components, least
        self.out = nn.Linear(input_dim, components * (1 + 2 * dim))

    def project(self, hidden: Tensor) -> Tensor:
        """Parameters of mixtures `[…, parameters]` of the transformer's vectors `[…, input_dim]`."""
        return self.out(hidden)

    def distribution(
        self, parameters: Tensor, null: Tensor | None, scale: float | Tensor | None, head: Any
    ) -> GaussianMixture:
        """The distribution of tokens with `parameters [batch, node, parameters]`; the other arguments are None."""
        assert null is None, "a mixture is not guided"
        weights, means, scales = self.parts(parameters)
        return GaussianMixture(weights.exp(), means, scales)

    def parts(self, parameters: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Log-weights `[…, K]`, means and scales `[…, K, dim]`, float32."""
        weights, means, scales = parameters.float().split(
            [self.components, self.components * self.dim, self.components * self.dim], -1
        )
        means, scales = (t.unflatten(-1, (self.components, self.dim)) for t in (means, scales))
        return weights.log_softmax(-1), means, F.softplus(scales) + self.least


HEADS = ("diffusion", "gaussian-mixture")


class CausalContinuousAR(ModelMixin, ConfigMixin):
    """The transformer and its head."""

    @register_to_config
    def __init__(
        self,
        token_dim: int = 8,
        grid: int = 8,  # tokens per side of the picture
        *,
        dim: int = 256,
        n_layer: int = 5,
        n_head: int = 4,
        n_kv_head: int | None = None,
        multiple_of: int = 64,  # the hidden width of feed-forwards, 2/3 · 4 · dim, is rounded up to a multiple of this
        caption_dim: int = 128,
        cls_token_num: int = 16,  # words of a caption: conditioning positions
        null_caption: bool = True,  # whether the model was trained with one; without one there is no guidance
        rope_base: float = 10_000.0,
        norm_eps: float = 1e-5,
        head: str = "diffusion",  # `diffusion` or `gaussian-mixture`
        head_dim: int = 224,
        head_depth: int = 3,
        steps: int = 16,  # denoising steps of the diffusion head
        sigma_0: float = 0.1,  # standard deviation of the last denoising step's noise
        components: int = 16,  # of the mixture head
        least: float = 0.05,  # smallest scale of a component
        # scales of the autoencoder's latents (`mmspec_continuous.pipeline.mark`), by which another autoencoder is
        # recognised and refused; None: not known
        latents: Sequence[float] | None = None,
    ) -> None:
        super().__init__()
        if head not in HEADS:
            raise ValueError(f"head is one of {', '.join(HEADS)}, not {head!r}")
        if steps < 1:
            raise ValueError(f"a token takes at least one denoising step, got steps={steps}")
        if not least > 0:
            raise ValueError(f"the smallest scale of a component must be positive, got least={least}")
        self.cls_embedding: Any = CaptionEmbedder(caption_dim, dim, cls_token_num)
        self.token = nn.Linear(token_dim, dim)
        self.layers = transformer_blocks(dim, n_layer, n_head, n_kv_head or n_head, multiple_of, norm_eps)
        self.norm = RMSNorm(dim, norm_eps)
        self.token_head: Denoiser | MixtureHead = (
            Denoiser(token_dim, dim, head_dim, head_depth, steps, sigma_0)
            if head == "diffusion"
            else MixtureHead(token_dim, dim, components, least)
        )
        # Not a buffer, so that it stays float32 when the weights are converted.
        self.rotary = grid_rotary(grid, dim // n_head, cls_token_num, rope_base, vanish=False)

    @property
    def cells(self) -> int:
        """Tokens per picture."""
        return self.config.grid**2

    def forward(self, condition: Tensor, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """Teacher forcing: the head's condition of every token `[batch, n, …]`, from captions `[batch, caption, width]`
        with their mask of padding (`[batch, caption]`), and the picture's first tokens `[batch, n, token_dim]`.
        """
        return self.project(teacher_forced(self, self.cls_embedding(condition), tokens, mask))

    def embed(self, tokens: Tensor) -> Tensor:
        return self.token(tokens.to(self.token.weight.dtype))

    def run(self, x: Tensor, position: Tensor, mask: Tensor | None, keys: Any) -> Tensor:
        return run_blocks(self, x, position, mask, keys)

    def project(self, hidden: Tensor) -> Tensor:
        """The head's input from hidden states `[batch, node, dim]`: `[batch, node, …]`."""
        return self.token_head.project(self.norm(hidden))
