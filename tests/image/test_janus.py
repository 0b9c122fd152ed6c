"""Janus on the core's cache: its own `generate(generation_mode="image")`, in fewer passes."""

import gc
import weakref
from types import SimpleNamespace

import pytest
import torch

import mmspec
from mmspec.api.build import decoder_for
from mmspec.core.decoder import Decoder
from mmspec.core.drafters.draft_model import DraftModel
from mmspec.core.rules import Match, Rejection
from mmspec.core.torch_noise import TorchSource
from mmspec.core.types import Draft
from mmspec.core.warp import Warp
from mmspec.hosts import self_check
from mmspec.registry import installed
from mmspec_image.drafters.jacobi import ImageJacobi, JacobiOptions
from mmspec_image.targets.janus import JanusPrompt, JanusTarget
from tests.support.close import assert_near
from tests.support.examples.image import tiny_janus

INITS = ("random", "left", "above")
OTHERS = ("prompt-lookup", "token-recycling", "draft-model")
STOCK_GUIDANCE = 5.0
IDS = torch.tensor([[1, 7, 8, 9, 10, 2], [0, 0, 1, 5, 6, 2], [0, 1, 4, 4, 11, 2]])
PADDED = (IDS != 0).long()
CODES = torch.randint(24, (3, 16), generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def model():
    return tiny_janus(24, 4)


def prompt(rows=3):
    return JanusPrompt(IDS[:rows], PADDED[:rows])


def stock(model, rows, **how):
    return model.generate(input_ids=IDS[:rows], attention_mask=PADDED[:rows], generation_mode="image", **how)


def forced(model, words, codes):
    """Scores of every code, after a prompt without padding: one whole pass of the language model."""
    inner = model.model
    embeds = [inner.get_input_embeddings()(words), model.prepare_embeddings_for_image_generation(codes[None, :-1])[0]]
    hidden = inner.language_model(inputs_embeds=torch.cat(embeds)[None], use_cache=False).last_hidden_state
    return inner.generation_head(hidden[0, len(words) - 1 :])


@pytest.fixture(scope="module")
def wanted(model):
    """Teacher-forced scores of `CODES`, conditional and unconditional: `[3, 16, 24]` each."""
    with torch.no_grad():
        words = [ids[ids != 0] for ids in IDS]
        null = [torch.where((ids == 1) | (ids == 2), ids, 0) for ids in words]
        return [torch.stack([forced(model, w, c) for w, c in zip(rows, CODES, strict=True)]) for rows in (words, null)]


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.compiled
def test_greedy_codes_are_those_of_its_own_generate(model, rows):
    codes = stock(model, rows, do_sample=False)
    assert codes.unique(dim=0).shape == codes.shape and len(codes.unique()) > 6, "codes must depend on their context"
    target, rounds = JanusTarget(model), []
    for init in INITS:
        for window in (1, 5, 16):
            decoder = Decoder(target, ImageJacobi(JacobiOptions(init)), Match(), k=window)
            made = decoder.generate(prompt(rows), 16, warp=Warp(sample=False, guidance=STOCK_GUIDANCE))
            assert torch.equal(torch.stack(made.units), codes), (init, window)
            rounds.append(made.report.row_rounds)
    assert max(rounds) <= 15 * rows and min(rounds) < 15 * rows


def test_dropout_is_refused_and_the_parts_that_do_not_run_may_train():
    model = tiny_janus(24, 4).train()
    decoder = Decoder(JanusTarget(model), k=0)
    decoder.generate(prompt(1), 2, seed=0)
    model.model.language_model.layers[0].self_attn.attention_dropout = 0.2
    with pytest.raises(ValueError, match=r"train\(\) mode, where its layers.0.self_attn draws at random"):
        decoder.generate(prompt(1), 2, seed=0)
    model.eval()
    assert len(decoder.generate(prompt(1), 2, seed=0).units[0]) == 2


def test_temperature_towards_zero(model):
    codes = stock(model, 3, do_sample=True, temperature=1e-4)
    warp = Warp.sampling(temperature=1e-4, guidance=STOCK_GUIDANCE)
    made = Decoder(JanusTarget(model), ImageJacobi(), k=5).generate(prompt(), 16, seed=3, warp=warp)
    assert torch.equal(torch.stack(made.units), codes)


@pytest.mark.compiled
def test_sampled_codes_are_those_of_its_own_generate_for_torchs_seed(model):
    torch.manual_seed(11)
    codes = stock(model, 3, do_sample=True, guidance_scale=2.0)
    torch.manual_seed(11)
    source = TorchSource(torch.default_generator, 3, torch.device("cpu"))
    warp = Warp.sampling(guidance=2.0)
    made = Decoder(JanusTarget(model), ImageJacobi(), k=6).generate(prompt(), 16, source=source, warp=warp)
    assert torch.equal(torch.stack(made.units), codes) and made.report.row_rounds < 45


@pytest.mark.compiled
@pytest.mark.parametrize("rows", [pytest.param(1, marks=pytest.mark.slow), 3])
@pytest.mark.parametrize(
    "method",
    [
        "gs-sjd-pac",
        *(pytest.param(m, marks=pytest.mark.slow) for m in ("prompt-lookup", "token-recycling", "draft-model")),
    ],
)
def test_so_are_those_of_every_method(model, method, rows):
    torch.manual_seed(12)
    codes, state = stock(model, rows, do_sample=True, guidance_scale=2.0), torch.get_rng_state()
    torch.manual_seed(12)
    source = TorchSource(torch.default_generator, rows, torch.device("cpu"))
    target, itself = JanusTarget(model), DraftModel(JanusTarget(model))
    decoder = decoder_for(model, method) if method != "draft-model" else Decoder(target, itself, Match(), k=4)
    made = decoder.generate(prompt(rows), 16, source=source, warp=Warp.sampling(guidance=2.0))
    assert torch.equal(torch.stack(made.units), codes) and (made.report.drafted > 0 or method == "prompt-lookup")
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("tree", [False, True])
def test_a_pass_scores_what_teacher_forcing_says(model, wanted, tree):
    target = JanusTarget(model)
    started = target.start(prompt(), 16, 6)
    for ours, theirs in ((started.output.logits, wanted[0]), (started.output.null, wanted[1])):
        torch.testing.assert_close(ours[:, 0], theirs[:, 0], rtol=1e-4, atol=1e-4)
    parents = [-1, 0, -1, 2, 3] if tree else [-1, 0, 1, 2, 3]
    drafted = torch.stack([CODES[:, 9], CODES[:, 8], *CODES[:, 1:4].unbind(1)], 1) if tree else CODES[:, 1:6]
    output = target.verify(started.cache, Draft.tree(drafted, parents).rooted(CODES[:, 0], torch.full((3,), 9)))
    path = [0, 3, 4, 5] if tree else [0, 1, 2, 3]
    for node, place in zip(path, range(1, 5), strict=True):
        for ours, theirs in ((output.logits, wanted[0]), (output.null, wanted[1])):
            torch.testing.assert_close(ours[:, node], theirs[:, place], rtol=1e-4, atol=1e-4)
    count = torch.tensor([4, 2, 3])
    target.commit(started.cache, torch.tensor(path[1:]).expand(3, -1), count)
    output = target.verify(started.cache, Draft.alone(CODES.gather(1, count[:, None])[:, 0]))
    for ours, theirs in ((output.logits, wanted[0]), (output.null, wanted[1])):
        expected = theirs.gather(1, (count + 1)[:, None, None].expand(-1, 1, 24))
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.compiled
def test_same_seed_same_picture_and_rows_are_independent(model):
    target, warp = JanusTarget(model), Warp.sampling(temperature=0.9, top_k=12, guidance=2.0)
    plain = Decoder(target).generate(prompt(), 16, seed=[5, 6, 7], warp=warp).units
    for rule in (Match, Rejection):
        decoder = Decoder(target, ImageJacobi(), rule(), k=6)
        together = decoder.generate(prompt(), 16, seed=[5, 6, 7], warp=warp).units
        assert rule is not Match or all(torch.equal(a, b) for a, b in zip(together, plain, strict=True))
        for row in range(3):
            alone = JanusPrompt(IDS[row, None, IDS[row] != 0])
            assert torch.equal(decoder.generate(alone, 16, seed=[5 + row], warp=warp).units[0], together[row])


def test_a_negative_prompt_of_another_length_is_the_unconditional_half(model, wanted):
    null = torch.tensor([[0, 1, 7, 8, 9, 9, 9, 2]])
    started = JanusTarget(model).start(JanusPrompt(IDS, PADDED, null, (null != 0).long()), 16, 1)
    with torch.no_grad():
        theirs = forced(model, null[0, 1:], CODES[0])[0]
    torch.testing.assert_close(started.output.null[:, 0], theirs.expand(3, -1), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(started.output.logits[:, 0], wanted[0][:, 0], rtol=1e-4, atol=1e-4)
    alone = JanusTarget(model).start(JanusPrompt(IDS, PADDED, guided=False), 16, 1)
    assert alone.output.null is None and len(alone.cache.slots.length) == 3


def test_pictures_are_transformers_own(model):
    """The published processors turn what `decode_image_tokens` gives into pixels with mean and deviation 0.5."""
    from transformers.models.janus.image_processing_pil_janus import JanusImageProcessorPil

    pictures = JanusTarget(model).decode(CODES.unflatten(1, (4, 4)))
    assert pictures.shape == (3, 3, 8, 8) and pictures.std() > 0.1
    half, processor = (0.5, 0.5, 0.5), JanusImageProcessorPil()
    for ours, theirs in zip(pictures, model.decode_image_tokens(CODES).detach().numpy(), strict=True):
        pixels = processor.unnormalize(theirs.transpose(2, 0, 1), half, half, "channels_first").clip(0, 1)
        assert_near(ours / 2 + 0.5, torch.from_numpy(pixels), 1e-4)


def test_the_class_says_which_use_is_meant(model):
    """Taken for pictures it is the image plugin's; any other Janus stays a language model, whose texts speculate."""
    from transformers import JanusForConditionalGeneration

    assert installed().target_for(model).qualified == "image:janus"
    writer = JanusForConditionalGeneration(model.config).eval()
    writer.load_state_dict(model.state_dict())
    writer.generation_config = model.generation_config
    assert installed().target_for(writer).qualified == "text:transformers"
    given = dict(input_ids=IDS, attention_mask=PADDED, max_new_tokens=12, do_sample=False)
    text = writer.generate(**given)
    with mmspec.enable(writer, "prompt-lookup"):
        assert torch.equal(writer.generate(**given), text)
    made = Decoder(JanusTarget(writer), k=0).generate(prompt(), 16, warp=Warp(sample=False, guidance=STOCK_GUIDANCE))
    assert torch.equal(torch.stack(made.units), stock(model, 3, do_sample=False)), "pictures need no other class"


def test_what_does_not_fit_is_refused(model, monkeypatch):
    target = JanusTarget(model)
    with pytest.raises(ValueError, match="has 16 codes, 17 were asked for"):
        target.start(prompt(), 17, 1)
    with pytest.raises(ValueError, match="padding on the right"):
        target.start(JanusPrompt(IDS, PADDED.flip(1)), 16, 1)
    with pytest.raises(ValueError, match="has holes"):
        target.start(JanusPrompt(IDS, torch.tensor([[1, 0, 1, 1, 1, 1]] * 3)), 16, 1)
    with pytest.raises(ValueError, match="token id 20 is outside the model's vocabulary of 20"):
        target.start(JanusPrompt(torch.full_like(IDS, 20)), 16, 1)
    with pytest.raises(TypeError, match="not a SimpleNamespace"):
        JanusTarget(SimpleNamespace())
    monkeypatch.setattr(model.generation_config, "generation_kwargs", {})
    with pytest.raises(ValueError, match=r"generation_kwargs\['boi_token_id'\]; set it, or give negative_ids"):
        target.start(prompt(), 16, 1)
    monkeypatch.setattr(model.config.vision_config, "num_image_tokens", 17)
    with pytest.raises(ValueError, match="makes 17 codes, and decodes 4 × 4"):
        JanusTarget(model)


def test_rope_that_rescales_itself_is_refused_beyond_its_reach(model):
    config = model.config.text_config
    config = type(model.config)(
        text_config={
            **config.to_dict(),
            "max_position_embeddings": 20,
            "rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0},
        },
        vision_config=model.config.vision_config,
        vq_config=model.config.vq_config,
    )
    target = JanusTarget(type(model)(config).eval())
    with pytest.raises(ValueError, match="6 tokens of prompt and 16 codes go beyond position 20, and dynamic rope"):
        target.start(JanusPrompt(IDS[:1], guided=False), 16, 1)


def test_it_is_examined_once_and_let_go(monkeypatch):
    """Every call has readers of its own; what is known is known of the model."""
    model, examined, right = tiny_janus(24, 4), [], self_check.examine
    monkeypatch.setattr(self_check, "examine", lambda model_info: (examined.append(1), right(model_info))[1])
    for target in (JanusTarget(model), JanusTarget(model)):
        target.start(prompt(), 4, 1)
    left = weakref.ref(model)
    del model, target
    gc.collect()
    assert len(examined) == 1 and left() is None
