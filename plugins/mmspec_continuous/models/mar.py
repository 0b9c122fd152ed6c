"""MAR (Li et al., arXiv 2406.11838): sets of continuous tokens in random order, each set drawn from one pass.

An encoder reads a class and the tokens that are known, a decoder all places, and a head denoises every token of the
next set by itself: tokens of a set are independent given those before it. The sizes of the sets follow a cosine.

No exact method drafts here. The last denoising step adds no noise and variances are learned, so that no draft from
another context would be accepted exactly. Attention goes both ways, so nothing of a pass can be kept for the next, and
to verify γ drafted sets takes γ passes over γ contexts. Continuous speculative decoding (2411.11925) judges drafts in
the context before all of them, and alters the distribution (`mmspec_continuous.models.mar_drafts`).

Keys are the published ones. Sizes are read from weights.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import torch
import torch.nn.functional as F
from diffusers import ConfigMixin, ModelMixin
from diffusers.configuration_utils import register_to_config
from torch import Tensor, nn

from mmspec.kits.pictures.models.official import Source, count_in, from_official, read_file, shape_in

EPS = 1e-6
TRAINED = 1000  # denoising steps of training
HEADS = {768: 12, 1024: 16, 1280: 16}  # published widths to attention heads
FREQUENCIES = 256  # width of a step's sinusoidal embedding


class MAR(ModelMixin, ConfigMixin):
    """The transformer and its denoising head."""

    @register_to_config
    def __init__(
        self,
        token_dim: int = 16,
        grid: int = 16,  # tokens per side of the picture
        *,
        dim: int = 768,
        depth: int = 12,  # blocks of the encoder, and of the decoder
        num_heads: int = 12,
        hidden: int = 3072,  # of feed-forwards
        buffer_size: int = 64,  # places in front that hold the class
        num_classes: int = 1000,
        head_width: int = 1024,
        head_depth: int = 6,
        # Noise levels of training from which tokens are denoised: the first ones, fewer for a model that does not know
        # the last ones well
        levels: int = TRAINED,
    ) -> None:
        super().__init__()
        cells = grid**2
        self.class_emb = nn.Embedding(num_classes, dim)
        self.fake_latent = nn.Parameter(torch.zeros(1, dim))  # the null class
        self.z_proj, self.z_proj_ln = nn.Linear(token_dim, dim), nn.LayerNorm(dim, EPS)
        self.encoder_pos_embed_learned = nn.Parameter(torch.zeros(1, buffer_size + cells, dim))
        self.encoder_blocks = nn.ModuleList(Block(dim, num_heads, hidden) for _ in range(depth))
        self.encoder_norm = nn.LayerNorm(dim, EPS)
        self.decoder_embed = nn.Linear(dim, dim)
        self.mask_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.decoder_pos_embed_learned = nn.Parameter(torch.zeros(1, buffer_size + cells, dim))
        self.decoder_blocks = nn.ModuleList(Block(dim, num_heads, hidden) for _ in range(depth))
        self.decoder_norm = nn.LayerNorm(dim, EPS)
        self.diffusion_pos_embed_learned = nn.Parameter(torch.zeros(1, cells, dim))
        self.diffloss: Any = nn.Module()  # named as published
        self.diffloss.net = DenoisingHead(token_dim, dim, head_width, head_depth)

    @classmethod
    def from_official(cls, source: Source, num_heads: int | None = None) -> Self:
        """The model of a published file: of its averaged weights, `model_ema`, where it has them."""
        contents = source
        if isinstance(source, str | Path):  # an optimiser's numbers beside the weights are mapped, and not read
            contents = read_file(Path(source), header=Path(source).suffix != ".safetensors")
        assert not isinstance(contents, str | Path)
        averaged = contents.get("model_ema", contents)
        return from_official(lambda state: cls(**_sizes(state, num_heads)), averaged)

    @property
    def cells(self) -> int:
        return int(self.config.grid) ** 2

    def forward(self, tokens: Tensor, known: Tensor, wanted: Tensor, classes: Tensor) -> Tensor:
        """The head's input from places, `[row, wanted, dim]`, of `tokens [row, known, token_dim]` at the places `known
        [row, known]`, for `wanted [row, wanted]` and embedded `classes [row, dim]`.
        """
        front = self.config.buffer_size
        x = torch.cat([classes[:, None].expand(-1, front, -1), self.z_proj(tokens)], 1)
        places = torch.cat([torch.arange(front, device=known.device).expand(len(known), -1), front + known], 1)
        x = self.z_proj_ln(x + self.encoder_pos_embed_learned[0, places])
        for block in self.encoder_blocks:
            x = block(x)
        seen = self.decoder_embed(self.encoder_norm(x))
        whole = self.mask_token.to(seen.dtype).repeat(len(x), front + self.cells, 1)
        x = whole.scatter(1, places[..., None].expand_as(seen), seen) + self.decoder_pos_embed_learned
        for block in self.decoder_blocks:
            x = block(x)
        x = self.decoder_norm(x)[:, front:] + self.diffusion_pos_embed_learned
        return x.gather(1, wanted[..., None].expand(-1, -1, x.shape[-1]))

    @torch.no_grad()
    def draw(
        self,
        labels: Tensor,
        orders: Tensor,
        normal: Callable[[int], Tensor],
        *,
        sets: int,
        guidance: float = 1.0,
        temperature: float = 1.0,
        denoising_steps: int = 100,
        drawn: Callable[[Tensor], bool] = lambda _: True,
    ) -> Tensor:
        """Tokens `[row, cell, token_dim]` float32 of classes `[row]`, in so many `sets`, each in a pass.

        `orders [row, cell]` are the places of a row; its last ones are drawn first. `normal` goes from a count n to
        standard normal numbers `[row, n, token_dim]`; it is called once for the beginning of every set, and once a
        denoising step. `guidance` is the scale at the last set; it grows from 1 with the share of tokens that are
        drawn. `temperature` is the factor of the denoising steps' noise; every token has `denoising_steps`. `drawn` is
        called behind every set with its places `[row, n]`; False ends the call, other tokens are 0.
        """
        steps = denoising(denoising_steps, labels.device, self.config.levels)
        tokens = torch.zeros(*orders.shape, self.config.token_dim, device=labels.device)
        for left, after in pairwise(self.left_behind(sets)):
            wanted = orders[:, after:left].sort(1).values
            condition, scale = self.condition(labels, tokens, orders[:, left:], wanted, after, guidance)
            made = self.denoised(condition, steps, normal, scale, temperature).x
            tokens = tokens.scatter(1, wanted[..., None].expand_as(made), made)
            if not drawn(wanted):
                break
        return tokens

    def left_behind(self, sets: int) -> list[int]:
        """The numbers of tokens that are left at first and behind every set: a cosine, at least one fewer each time."""
        left = [self.cells]
        for number in range(1, sets):
            curve = math.floor(self.cells * math.cos(math.pi / 2 * number / sets))
            left.append(max(1, min(left[-1] - 1, curve)))
        return [*left, 0]

    def condition(
        self, labels: Tensor, tokens: Tensor, known: Tensor, wanted: Tensor, after: int, guidance: float
    ) -> tuple[Tensor, float | None]:
        """The head's condition of the places `wanted [row, n]`, of the tokens at the places `known [row, m]`: `[row, n,
        dim]`, under guidance twice as many rows; and the scale of a set behind which so many tokens are left.
        """
        known = known.sort(1).values
        read = tokens.gather(1, known[..., None].expand(-1, -1, tokens.shape[-1])).to(self.fake_latent.dtype)
        classes = self.class_emb(labels)
        if guidance == 1.0:
            return self(read, known, wanted, classes), None
        classes = torch.cat([classes, self.fake_latent.expand(len(labels), -1)])
        halves = [torch.cat([each, each]) for each in (read, known, wanted)]
        # The published schedule counts one masked token at the end
        return self(*halves, classes), 1 + (guidance - 1) * (self.cells - max(after, 1)) / self.cells

    def denoised(
        self,
        condition: Tensor,
        steps: "Steps",
        normal: Callable[[int], Tensor],
        scale: float | None,
        temperature: float,
    ) -> "Denoised":
        """Tokens of conditions `[row, n, dim]`, twice as many rows under guidance."""
        x, net = normal(condition.shape[1]), self.diffloss.net
        spreads, log_sigma = torch.zeros_like(x), torch.zeros_like(x)
        for step in reversed(range(len(steps.times))):
            both = x if scale is None else x.repeat(2, 1, 1)
            noise, spread = net(both, steps.times[step], condition).float().chunk(2, -1)
            if scale is not None:
                (noise, away), spread = noise.chunk(2), spread.chunk(2)[0]
                noise = away + scale * (noise - away)
            clean = steps.of_x[step] * x - steps.of_noise[step] * noise
            share = (spread + 1) / 2
            spreads, log_sigma = spreads + log_sigma, (share * steps.most[step] + (1 - share) * steps.least[step]) / 2
            x, fresh = steps.keep_clean[step] * clean + steps.keep_x[step] * x, normal(condition.shape[1])
            if step:
                x = x + log_sigma.exp() * fresh * temperature
        return Denoised(x, log_sigma, spreads)


@dataclass(frozen=True)
class Denoised:
    """Tokens at the end of their denoising; each `[row, n, token_dim]` float32."""

    x: Tensor  # the tokens, which are the means of the last step
    log_sigma: Tensor  # the learned deviation of the last step, which adds no noise, as a logarithm
    spreads: Tensor  # the sum of those of all steps before it


class Block(nn.Module):
    """Pre-norm attention to all places, then a feed-forward, with residual connections; names as published."""

    def __init__(self, dim: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim, EPS), nn.LayerNorm(dim, EPS)
        self.attn: Any = nn.Module()
        self.mlp: Any = nn.Module()
        self.attn.qkv, self.attn.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp.fc1, self.mlp.fc2 = nn.Linear(dim, hidden), nn.Linear(hidden, dim)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.attn.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
        x = x + self.attn.proj(attended)
        return x + self.mlp.fc2(F.gelu(self.mlp.fc1(self.norm2(x))))


class DenoisingHead(nn.Module):
    """Residual blocks under adaptive norms: from a token's state and time to its noise and a share of its variance."""

    def __init__(self, token_dim: int, dim: int, width: int, depth: int) -> None:
        super().__init__()
        self.time_embed: Any = nn.Module()
        self.time_embed.mlp = nn.Sequential(nn.Linear(FREQUENCIES, width), nn.SiLU(), nn.Linear(width, width))
        self.cond_embed, self.input_proj = nn.Linear(dim, width), nn.Linear(token_dim, width)
        self.res_blocks: Any = nn.ModuleList(_adaptive(width, 3) for _ in range(depth))
        for block in self.res_blocks:
            block.in_ln = nn.LayerNorm(width, EPS)
            block.mlp = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
        self.final_layer: Any = _adaptive(width, 2)
        self.final_layer.linear = nn.Linear(width, 2 * token_dim)

    def forward(self, x: Tensor, time: int, condition: Tensor) -> Tensor:
        """`[…, 2 * token_dim]` of states `[…, token_dim]` at one time, under conditions `[…, dim]`."""
        half = FREQUENCIES // 2
        angles = time * torch.exp(-math.log(10_000) * torch.arange(half, device=x.device) / half)
        told = self.time_embed.mlp(torch.cat([angles.cos(), angles.sin()]).to(condition.dtype))
        under, h = told + self.cond_embed(condition), self.input_proj(x.to(condition.dtype))
        for block in self.res_blocks:
            shift, scale, gate = block.adaLN_modulation(under).chunk(3, -1)
            h = h + gate * block.mlp(block.in_ln(h) * (1 + scale) + shift)
        shift, scale = self.final_layer.adaLN_modulation(under).chunk(2, -1)
        return self.final_layer.linear(F.layer_norm(h, h.shape[-1:], eps=EPS) * (1 + scale) + shift)


def _adaptive(width: int, parts: int) -> Any:
    module = nn.Module()
    module.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, parts * width))
    return module


class Steps:
    """Numbers of denoising steps, from the last to the first; lists by step."""

    def __init__(self, times: list[int], bars: Tensor) -> None:
        before = torch.cat([bars.new_ones(1), bars[:-1]])
        beta = 1 - bars / before
        variance = beta * (1 - before) / (1 - bars)
        self.times = times
        self.of_x, self.of_noise = ((1 / bars).sqrt().tolist(), (1 / bars - 1).sqrt().tolist())
        self.keep_clean = (beta * before.sqrt() / (1 - bars)).tolist()
        self.keep_x = ((1 - before) * (1 - beta).sqrt() / (1 - bars)).tolist()
        self.most = beta.log().tolist()
        self.least = torch.cat([variance[1:2], variance[1:]]).log().tolist()  # the first is 0


def denoising(count: int, device: torch.device | str = "cpu", levels: int = TRAINED) -> Steps:
    """`count` of the first `levels` steps of training, evenly apart; ᾱ is a cosine (Nichol & Dhariwal, arXiv
    2102.09672); refuses fewer than two, and more than levels.
    """
    if not 2 <= count <= levels:
        raise ValueError(f"tokens are denoised in 2 to {levels} steps, and not {count}")
    curve = [math.cos((time / TRAINED + 0.008) / 1.008 * math.pi / 2) ** 2 for time in range(TRAINED + 1)]
    beta = torch.tensor([min(1 - b / a, 0.999) for a, b in pairwise(curve)], dtype=torch.float64)
    bars, at, times = (1 - beta).cumprod(0), 0.0, list[int]()
    for _ in range(count):
        times.append(round(at))
        at += (levels - 1) / (count - 1)
    return Steps(times, bars[times])


def _sizes(state: Mapping[str, Tensor], num_heads: int | None) -> dict[str, Any]:
    """The configuration of published weights."""
    dim, token_dim = shape_in(state, "z_proj.weight", 2)
    cells = shape_in(state, "diffusion_pos_embed_learned", 3)[1]
    places = shape_in(state, "encoder_pos_embed_learned", 3)[1]
    heads = HEADS.get(dim) if num_heads is None else num_heads
    if heads is None or dim % heads:
        raise ValueError(f"width {dim} is no published size: say num_heads=, which divides it")
    return {
        "token_dim": token_dim,
        "grid": round(cells**0.5),
        "dim": dim,
        "depth": count_in(state, "encoder_blocks."),
        "num_heads": heads,
        "hidden": shape_in(state, "encoder_blocks.0.mlp.fc1.weight", 2)[0],
        "buffer_size": places - cells,
        "num_classes": shape_in(state, "class_emb.weight", 2)[0],
        "head_width": shape_in(state, "diffloss.net.input_proj.weight", 2)[0],
        "head_depth": count_in(state, "diffloss.net.res_blocks."),
    }
