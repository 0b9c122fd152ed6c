"""Quality of pictures: the Fréchet distance to the training pictures in the features of a small network.

The network was trained to match captions with pictures (`tools.train.pictures.features`), so that its features
describe what captions mention. The distance is FID's (Heusel et al., arXiv 1706.08500), between Gaussians, but in other
features: numbers are comparable with each other only. Features are scaled so that the training pictures' total variance
is 1: copies of an average picture would be at distance 1.
The estimate is biased upwards for few pictures, and is not corrected: compare equal numbers of pictures, and plain
decoding with other seeds as the floor, which shows the spread by chance.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from diffusers import ConfigMixin, ModelMixin
from diffusers.configuration_utils import register_to_config
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from mmspec.files import save_whole

FILE = "quality.safetensors"
WHAT = "features of pictures and captions (float16), and mean and covariance of the training pictures' features"
_WEIGHTS = "features."


class Features(ModelMixin, ConfigMixin):
    """Features of pictures and of captions, in one space.

    Args:
        vocab_size: Size of the captions' vocabulary.
        width: Number of features.
        channels: Channels of the levels, each of which halves the picture.
    """

    @register_to_config
    def __init__(self, vocab_size: int = 1024, width: int = 64, channels: Sequence[int] = (32, 64, 96, 128)) -> None:
        super().__init__()
        sizes = zip((3, *channels), channels, strict=False)
        self.levels = nn.Sequential(*(_level(before, after) for before, after in sizes))
        self.head = nn.Linear(2 * channels[-1], width)
        self.words = nn.Embedding(vocab_size, width)

    def forward(self, pictures: Tensor) -> Tensor:
        """Features `[batch, width]` of pictures `[batch, 3, height, width]` in [-1, 1]."""
        x = self.levels(pictures)
        return self.head(torch.cat([x.mean((-2, -1)), x.amax((-2, -1))], -1))

    def captions(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Features `[batch, width]` of captions `[batch, length]`: the mean of their tokens, padding left out."""
        kept = mask.type_as(self.words.weight)[..., None]
        return (self.words(ids) * kept).sum(1) / kept.sum(1).clamp(min=1)


def _level(before: int, after: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(before, after, 3, stride=2, padding=1), nn.GroupNorm(8, after), nn.SiLU())


@dataclass(frozen=True)
class FeatureStatistics:
    """Mean and covariance of the features of a set of pictures."""

    mean: Tensor  # `[width]`
    covariance: Tensor  # `[width, width]`
    count: int  # number of pictures

    @classmethod
    def of(cls, features: Tensor) -> "FeatureStatistics":
        """Statistics of features `[n, width]`, n >= 2; the covariance is divided by n - 1."""
        return cls(features.double().mean(0), features.double().T.cov(), len(features))


def frechet(mean_a: Tensor, covariance_a: Tensor, mean_b: Tensor, covariance_b: Tensor) -> float:
    """|m - n|² + tr(A + B - 2 (A^½ B A^½)^½), in float64, by two symmetric eigendecompositions."""
    a, b = covariance_a.double(), covariance_b.double()
    values, vectors = torch.linalg.eigh(a)
    root = (vectors * values.clamp(min=0).sqrt()) @ vectors.T
    both = torch.linalg.eigvalsh(root @ b @ root).clamp(min=0).sqrt().sum()
    return float((mean_a.double() - mean_b.double()).square().sum() + a.trace() + b.trace() - 2 * both)


@dataclass(frozen=True)
class Quality:
    """The feature network and the statistics of the training pictures."""

    features: Features  # the network
    training: FeatureStatistics  # statistics of the training pictures' features

    @torch.no_grad()
    def of(self, pictures: Tensor) -> Tensor:
        """Features `[n, width]`, on the CPU, of pictures `[n, 3, height, width]` in [-1, 1]."""
        parts = pictures.float().split(256)
        return torch.cat([self.features(part.to(self.features.device)).cpu() for part in parts])

    def distance(self, pictures: Tensor) -> float:
        """Fréchet distance of pictures to the training pictures.

        Raises:
            ValueError: There are fewer than two pictures.
        """
        if len(pictures) < 2:
            raise ValueError(f"a distance needs two pictures at least, got {len(pictures)}")
        own = FeatureStatistics.of(self.of(pictures))
        return frechet(own.mean, own.covariance, self.training.mean, self.training.covariance)

    @torch.no_grad()
    def caption_score(self, pictures: Tensor, ids: Tensor, mask: Tensor) -> float:
        """Mean cosine of the features of pictures and of their captions' tokens `[n, length]`, in [-1, 1]."""
        captions = self.features.captions(ids.to(self.features.device), mask.to(self.features.device))
        return float(F.cosine_similarity(self.of(pictures), captions.cpu().float()).mean())


@torch.no_grad()
def write_quality(folder: Path, features: Features, pictures: Tensor) -> Quality:
    """Write `quality.safetensors`, whole or not at all.

    Args:
        folder: Receives the file.
        features: The trained network; it is scaled in place, and rounded to float16 as in the file.
        pictures: `[n, 3, height, width]` in [-1, 1]: the training pictures.

    Returns:
        The quality as `load_quality` reads it from the file.
    """
    features.eval()
    spread = FeatureStatistics.of(Quality(features, _NOTHING).of(pictures)).covariance.trace().float().sqrt()
    features.head.weight.div_(spread)
    features.head.bias.div_(spread)
    half = {name: value.half() for name, value in features.state_dict().items()}
    features.load_state_dict(half)
    training = FeatureStatistics.of(Quality(features, _NOTHING).of(pictures))
    tensors = {_WEIGHTS + name: value.cpu().contiguous() for name, value in half.items()}
    tensors |= {"mean": training.mean.float(), "covariance": training.covariance.float()}
    tensors["count"] = torch.tensor(training.count)
    config = {name: value for name, value in features.config.items() if not name.startswith("_")}
    about = {"what": WHAT, "config": json.dumps(config)}
    save_whole(folder / FILE, lambda side: save_file(tensors, side, about))
    return load_quality(folder)


def load_quality(folder: Path) -> Quality:
    """Read what `write_quality` wrote.

    Raises:
        ValueError: There is no such file in the folder.
    """
    path = folder / FILE
    if not path.is_file():
        raise ValueError(f"there is no {path}, which judges pictures; `python -m tools.train` writes it beside a model")
    with safe_open(path, "pt") as file:
        config = json.loads(file.metadata()["config"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    features = Features(**config)
    features.load_state_dict(
        {name.removeprefix(_WEIGHTS): value for name, value in tensors.items() if name.startswith(_WEIGHTS)}
    )
    return Quality(features.eval(), FeatureStatistics(tensors["mean"], tensors["covariance"], int(tensors["count"])))


_NOTHING = FeatureStatistics(torch.zeros(0), torch.zeros(0, 0), 0)
