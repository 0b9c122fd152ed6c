"""The Fréchet distance against formulas, the network's file against what was written."""

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from tools.bench.pictures.quality import FILE, Features, FeatureStatistics, frechet, load_quality, write_quality


def spread(seed: int, n: int = 5) -> torch.Tensor:
    a = torch.randn(n, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return a @ a.T


def test_where_covariances_commute_the_distance_has_a_closed_form() -> None:
    turn = torch.linalg.qr(spread(0))[0]
    a, b = torch.tensor([4.0, 1.0, 0.0, 2.0, 9.0]).double(), torch.tensor([1.0, 1.0, 3.0, 0.0, 4.0]).double()
    covariances = [turn @ values.diag() @ turn.T for values in (a, b)]
    mean = torch.arange(5).double()
    expected = float(5 * 4 + (a.sqrt() - b.sqrt()).square().sum())
    assert frechet(mean, covariances[0], mean + 2, covariances[1]) == pytest.approx(
        expected, abs=1e-6
    )  # roots of zero are rough


def test_the_distance_is_that_of_a_general_matrix_root() -> None:
    from scipy.linalg import sqrtm

    a, b, zero = spread(1), spread(2), torch.zeros(5)
    root = torch.from_numpy(sqrtm((a @ b).numpy()).real)
    assert frechet(zero, a, zero, b) == pytest.approx(float((a + b - 2 * root).trace()), abs=1e-8)
    assert frechet(zero, b, zero, a) == pytest.approx(frechet(zero, a, zero, b), abs=1e-8)
    assert frechet(zero, a, zero, a) == pytest.approx(0, abs=1e-8)


def drawn(n: int, seed: int, shape: int = 16) -> torch.Tensor:
    return torch.rand(n, 3, shape, shape, generator=torch.Generator().manual_seed(seed)) * 2 - 1


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("quality")
    write_quality(folder, Features(40, width=8, channels=(8, 16)), drawn(200, 0))
    return folder


def test_the_file_says_what_it_is_and_gives_back_what_was_written(written: Path) -> None:
    assert [file.name for file in written.iterdir()] == [FILE]
    with safe_open(written / FILE, "pt") as held:
        kinds = {held.get_tensor(name).dtype for name in held.keys() if name.startswith("features.")}  # noqa: SIM118
        assert kinds == {torch.float16} and held.get_tensor("covariance").dtype == torch.float32
        assert json.loads(held.metadata()["config"])["width"] == 8 and "training pictures" in held.metadata()["what"]
    quality = load_quality(written)
    own = FeatureStatistics.of(quality.of(drawn(200, 0)))
    assert quality.training.count == 200 and torch.allclose(own.mean.float(), quality.training.mean, atol=1e-6)
    assert float(quality.training.covariance.trace()) == pytest.approx(1, abs=0.01)  # weights are rounded afterwards
    assert quality.distance(drawn(200, 0)) == pytest.approx(0, abs=1e-4)


def test_other_pictures_are_further_away_and_few_pictures_too(written: Path) -> None:
    quality = load_quality(written)
    same, smooth = quality.distance(drawn(200, 1)), quality.distance(torch.zeros(200, 3, 16, 16))
    assert same < 0.3 < smooth and same < quality.distance(drawn(10, 1))
    with pytest.raises(ValueError, match="two pictures at least, got 1"):
        quality.distance(drawn(1, 0))
    with pytest.raises(ValueError, match=r"`python -m tools\.train` writes it"):
        load_quality(written / "nowhere")


def test_captions_are_the_mean_of_their_tokens_without_padding() -> None:
    features = Features(40, width=8, channels=(8, 16))
    ids, mask = torch.tensor([[0, 3, 5], [0, 0, 7]]), torch.tensor([[0, 1, 1], [0, 0, 1]])
    table = features.words.weight
    assert torch.allclose(features.captions(ids, mask), torch.stack([(table[3] + table[5]) / 2, table[7]]))


def test_the_default_network_is_small() -> None:
    assert sum(weights.numel() for weights in Features().parameters()) <= 300_000
