"""LlamaGen on the core's cache: windows and trees score what teacher forcing says; same seed, same picture."""

import pytest
import torch

from mmspec.core.decoder import Decoder
from mmspec.core.rules import Match, Rejection
from mmspec.core.types import Draft
from mmspec.core.warp import Warp
from mmspec.kits.pictures.conditions import Condition
from mmspec_image.drafters.jacobi import ImageJacobi, JacobiOptions
from mmspec_image.models.llamagen import LlamaGenTransformer
from mmspec_image.targets.llamagen import LlamaGenTarget

INITS = ("random", "left", "above")
GUIDED = Warp.sampling(temperature=0.9, guidance=2.0)


def captions(rows, masked=False):
    features = torch.randn(rows, 6, 12, generator=torch.Generator().manual_seed(3))
    mask = torch.arange(6) >= torch.arange(rows)[:, None] % 4 if masked else None
    return Condition(features, mask)


def conditions(request_model, rows, masked=False):
    return Condition(torch.arange(rows) % 5) if request_model.config.model_type == "c2i" else captions(rows, masked)


@pytest.mark.parametrize("name", ["by_class", "by_caption"])
@pytest.mark.parametrize("tree", [False, True])
def test_a_pass_scores_what_teacher_forcing_says(name, tree, request):
    model = request.getfixturevalue(name)
    target, rows = LlamaGenTarget(model), 3
    given = conditions(model, rows, masked=name == "by_caption")
    codes = torch.randint(24, (rows, 16), generator=torch.Generator().manual_seed(0))
    null = Condition(model.cls_embedding.null(rows), given.mask)
    with torch.no_grad():
        wanted = [model(c.given, codes, c.mask) for c in (given, null)]
    started = target.start(given, 16, 6)
    torch.testing.assert_close(started.output.logits[:, 0], wanted[0][:, 0], rtol=1e-4, atol=1e-4)
    root, count = codes[:, 0], torch.tensor([4, 2, 3])
    parents = [-1, 0, -1, 2, 3] if tree else [-1, 0, 1, 2, 3]
    drafted = torch.stack([codes[:, 9], codes[:, 8], *codes[:, 1:4].unbind(1)], 1) if tree else codes[:, 1:6]
    output = target.verify(started.cache, Draft.tree(drafted, parents).rooted(root, torch.full((rows,), 9)))
    path = [0, 3, 4, 5] if tree else [0, 1, 2, 3]
    for node, place in zip(path, range(1, 5), strict=True):
        for ours, theirs in ((output.logits, wanted[0]), (output.null, wanted[1])):
            torch.testing.assert_close(ours[:, node], theirs[:, place], rtol=1e-4, atol=1e-4)
    target.commit(started.cache, torch.tensor(path[1:]).expand(rows, -1), count)
    after = codes.gather(1, count[:, None])[:, 0]
    output = target.verify(started.cache, Draft.alone(after))
    expected = wanted[0].gather(1, (count + 1)[:, None, None].expand(-1, 1, 24))
    torch.testing.assert_close(output.logits, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.thinned(1)
@pytest.mark.parametrize("init", INITS)
@pytest.mark.parametrize("name", ["by_class", "by_caption"])
@pytest.mark.compiled
def test_same_seed_same_picture(name, init, request):
    model = request.getfixturevalue(name)
    target = LlamaGenTarget(model)
    plain = Decoder(target).generate(conditions(model, 3, True), 16, seed=7, warp=GUIDED)
    for window in (1, 5, 16):
        decoder = Decoder(target, ImageJacobi(JacobiOptions(init)), Match(), k=window)
        output = decoder.generate(conditions(model, 3, True), 16, seed=7, warp=GUIDED)
        assert all(torch.equal(a, b) for a, b in zip(output.units, plain.units, strict=True))
    assert output.report.row_rounds < plain.report.row_rounds


@pytest.mark.compiled
def test_a_row_does_not_depend_on_its_batch(by_caption):
    given = captions(3, masked=True)
    for rule in (Match, Rejection):
        decoder = Decoder(LlamaGenTarget(by_caption), ImageJacobi(), rule(), k=6)
        together = decoder.generate(given, 16, seed=[5, 6, 7], warp=GUIDED).units
        for row in range(3):
            alone = Condition(given.given[row : row + 1], given.mask[row : row + 1])
            assert torch.equal(decoder.generate(alone, 16, seed=[5 + row], warp=GUIDED).units[0], together[row])


def test_more_codes_than_a_picture_has_are_refused(by_class):
    with pytest.raises(ValueError, match="has 16 codes, 17 were asked for"):
        LlamaGenTarget(by_class).start(Condition(torch.tensor([0])), 17, 1)


def test_without_guidance_there_is_one_half(by_class):
    started = LlamaGenTarget(by_class).start(Condition(torch.tensor([0, 1]), guided=False), 16, 4)
    assert started.output.null is None and len(started.cache.slots.length) == 2


def test_positions_stay_precise_in_half_precision():
    model = LlamaGenTransformer(24, 4, dim=32, n_layer=1, n_head=4, multiple_of=16, num_classes=5)
    before = model.rotary.clone()
    made = model.to(torch.bfloat16)(torch.tensor([0]), torch.zeros(1, 16, dtype=torch.int64))
    assert torch.equal(model.rotary, before) and made.isfinite().all()
