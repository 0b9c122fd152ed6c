"""`spatial-head`: what a new code is drawn from, the exact joint, plain's codes, and the training of heads."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from mmspec.api.build import decoder_for
from mmspec.core.decoder import Decoder
from mmspec.core.distributions import Categorical
from mmspec.core.hidden import Lent
from mmspec.core.rules import Match, Rejection
from mmspec.core.warp import Warp
from mmspec.kits.pictures.conditions import Condition
from mmspec.kits.pictures.data import Pictures
from mmspec.testing.statistics import assert_follows
from mmspec_image.drafters.spatial_head import SpatialHeadOptions, SpatialHeadWindow
from mmspec_image.models.spatial_head import SpatialHead
from mmspec_image.targets.janus import JanusTarget
from mmspec_image.targets.llamagen import LlamaGenTarget
from mmspec_image.train.spatial_head import HeadRecipe, overlap, states_of, train_head
from tests.support.toys.picture import PictureTarget, drawn, joint

VOCAB, LENGTH, DIM = 3, 5, 8
GUIDED = Warp(guidance=2.0)


class StatefulPicture(PictureTarget):
    """The toy picture with states, which tell the codes at the left and above; its output layer is a random one."""

    offers = PictureTarget.offers | {"hidden"}
    hidden_size, model = DIM, None

    def layers(self):
        return 1

    def with_hidden(self, boundaries):
        return self

    def lend(self):
        return Lent(self.embedding, self.output, torch.device("cpu"), torch.float32)

    def start(self, inputs, limit, width):
        made = super().start(inputs, limit, width)
        return replace(made, hidden=made.output.hidden)

    def _output(self, cache, before, up, place):
        made = super()._output(cache, before, up, place)
        left, above = before * (place % self.width > 0), up * (place >= self.width)
        state = self.embedding(left) + self.embedding(above).flip(-1)
        return replace(made, hidden=torch.cat([state, -state], -1))


def toy(dtype="float32"):
    torch.manual_seed(4)
    target = StatefulPicture(2, PictureTarget.random(2, VOCAB, seed=3).table.to(getattr(torch, dtype)))
    target.embedding = nn.Embedding(VOCAB, DIM)
    target.output = nn.Linear(DIM, VOCAB, bias=False)
    return target.embedding.requires_grad_(False), target.output.requires_grad_(False), target


def heads(dim, hidden=16):
    torch.manual_seed(5)
    return SpatialHead(dim, hidden).eval()


def window(head):
    return SpatialHeadWindow(SpatialHeadOptions(model=head))


@pytest.mark.parametrize(
    ("rows", "dtype", "k", "warp"),
    [
        (25_000, "float32", 2, GUIDED),
        *(
            pytest.param(200_000, dtype, k, warp, marks=pytest.mark.slow)
            for dtype in ("float32", "bfloat16")
            for k, warp in ((1, GUIDED), (4, Warp.sampling(top_k=2, guidance=2.0)))
        ),
    ],
)
def test_the_joint_is_kept(rows, dtype, k, warp):
    *_, target = toy(dtype)
    oracle = PictureTarget(2, target.table.float())
    decoder = Decoder(target, window(heads(DIM)), Rejection(), k=k)
    expected = joint(oracle, LENGTH, warp)
    p = assert_follows(lambda seed, n: drawn(decoder, n, LENGTH, seed=seed, warp=warp), expected, rows)
    print(f"p = {p:.4f}")


def copying(dim):
    """A head that predicts the state of the code above."""
    head = heads(dim)
    for weights in head.parameters():
        weights.data.zero_()
    head.mix.weight.data[:, :dim] = torch.eye(dim)
    return head


def test_a_new_code_is_drawn_from_what_the_head_says(by_class):
    """With a head that copies: from the distribution of the code above, with the target's noise at the new place."""
    given, warp, k = Condition(torch.arange(40) % 5), Warp.sampling(top_k=12, guidance=2.0), 3
    plain = torch.stack(Decoder(LlamaGenTarget(by_class)).generate(given, 16, seed=2, warp=warp).units)
    logits = [by_class(of, plain) for of in (given.given, by_class.cls_embedding.null(40))]
    guided = logits[1] + 2.0 * (logits[0] - logits[1])
    for processor in warp.processors:
        guided = processor(None, guided.flatten(0, 1)).view_as(guided)
    decoder = Decoder(LlamaGenTarget(by_class), window(copying(32)), Match(), k=k)
    state = decoder.start(given, 16, seed=2, warp=warp)
    seen = 0
    while not state.finished:
        before = state.memory.window
        old = torch.zeros(40, 0, dtype=torch.bool) if before is None else before.drawn
        new = ~torch.nn.functional.pad(old, (0, k - old.shape[1]))
        place = state.emitted[:, None] + torch.arange(k)
        p = guided.gather(1, (place - 4).clamp(0, 15)[..., None].expand(-1, -1, 24)).softmax(-1)
        expected = Categorical(p).draw(decoder.rule.draft_noise(state.round()).chain(1, k))
        pending = decoder.speculate(state)
        units = pending.draft.drafted
        here = (new & (place >= 4) & (place < 16))[:, : units.shape[1]] & pending.draft.valid[:, 1:]
        assert torch.equal(units[here], expected[:, : units.shape[1]][here])
        seen += int(here.sum())
        decoder.settle(state, pending)
        state.sync()
    assert seen > 30 and torch.equal(torch.stack(state.output()), plain)


@pytest.mark.parametrize("k", [2, 6, 16])
def test_the_models_codes_are_plains(by_class, k):
    given = Condition(torch.arange(6) % 5)
    for warp in (Warp.sampling(top_k=12, guidance=2.0), Warp.sampling(0.9), Warp(sample=False, guidance=2.0)):
        asked = replace(given, guided=warp.guidance is not None)
        plain = Decoder(LlamaGenTarget(by_class)).generate(asked, 16, seed=2, warp=warp).units
        decoder = decoder_for(by_class, "spatial-head", k=k, options={"model": heads(32)})
        made = decoder.generate(asked, 16, seed=2, warp=warp)
        assert not made.report.faults
        assert all(torch.equal(a, b) for a, b in zip(made.units, plain, strict=True))


def test_what_does_not_fit_is_refused(by_class, tmp_path):
    with pytest.raises(ValueError, match="needs a head"):
        SpatialHeadWindow()
    with pytest.raises(ValueError, match="states of 16 numbers, not of 32"):
        Decoder(LlamaGenTarget(by_class), window(heads(16)))
    with pytest.raises(ValueError, match="hidden"):
        Decoder(PictureTarget.random(2, VOCAB, seed=3), window(heads(DIM)))
    assert "hidden" not in JanusTarget.offers  # its method is refused by the words
    heads(32).save_pretrained(tmp_path)
    read = SpatialHeadWindow(SpatialHeadOptions(model=str(tmp_path))).head
    assert all(torch.equal(a, b) for a, b in zip(read.parameters(), heads(32).parameters(), strict=True))


def test_training_brings_the_distributions_together(tiny, tmp_path):
    g = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (40, 3, 8, 8), dtype=torch.uint8, generator=g)
    pictures = Pictures(images, ["red heart", "blue cat face", "apple", "star"] * 10)
    recipe = HeadRecipe(pictures=30, steps=60, hidden=16)
    head = train_head(tiny, pictures, recipe, tmp_path, lambda line: None)
    states, codes = states_of(tiny, pictures, pictures.held_out.nonzero()[:, 0])
    assert states.shape == (2, 2, 16, 32)
    untrained, trained = (overlap(of, tiny.transformer, states.float(), codes, 2.0) for of in (heads(32), head))
    assert trained > untrained + 0.02, (trained, untrained)
    # States are those that the target returns: its own output layer makes the logits of teacher forcing of them.
    features, mask = tiny.encode_prompt(["blue cat face"]).given, tiny.encode_prompt(["blue cat face"]).mask
    chosen = torch.tensor([1])
    (states, codes), model = states_of(tiny, pictures, chosen), tiny.transformer
    assert torch.allclose(model.output(states[:, 0].float()), model(features, codes, mask), atol=0.1, rtol=0.02)
