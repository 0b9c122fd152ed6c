"""The pipeline's calls: what is drawn, in which form, from which noise, and what is refused before anything runs."""

from copy import deepcopy

import numpy as np
import pytest
import torch
from diffusers import ImagePipelineOutput
from safetensors.torch import load_file, save_file
from transformers import T5Config, T5EncoderModel

import mmspec
from mmspec import shipped
from mmspec.hosts.loading import load_tokenizer
from mmspec.kits.pictures.arguments import Sampling
from mmspec.kits.pictures.bench import CAPTIONS
from mmspec.kits.pictures.models.captions import CaptionEncoder
from mmspec.kits.pictures.models.vq import LlamaGenVQ
from mmspec.kits.pictures.prompts import tokens_of, words_of
from mmspec.registry import installed
from mmspec_image.drafters.jacobi import ImageJacobi
from mmspec_image.pipeline import TextToImageOutput, TextToImagePipeline
from tools.train.pictures.captioned import caption_tokenizer

PROMPTS = ["red heart", "blue cat face"]


def fresh(pipe, method="gs-sjd", **how):
    made = TextToImagePipeline(**pipe.components)
    made.set_progress_bar_config(disable=True)
    return made.use(method, **how)


def seeded(*seeds):
    return [torch.Generator().manual_seed(seed) for seed in seeds]


@pytest.mark.parametrize("how", [{}, {"guidance_scale": 1.0}, {"temperature": 0.7, "top_k": 9, "top_p": 0.9}])
@pytest.mark.compiled
def test_the_method_does_not_change_the_picture(tiny, how):
    plain = fresh(tiny, "plain")(PROMPTS, seed=4, **how)
    for pipe in (tiny, fresh(tiny, k=15), fresh(tiny, init="random"), fresh(tiny, "auto")):
        made = pipe(PROMPTS, seed=4, **how)
        assert torch.equal(made.codes, plain.codes)
        assert np.array_equal(np.stack(made.images), np.stack(plain.images))
        assert made.report.row_rounds < plain.report.row_rounds
    assert not torch.equal(fresh(tiny)(PROMPTS, seed=5, **how).codes, plain.codes)


def test_auto_is_what_the_target_is_used_with(tiny):
    decoder = fresh(tiny, "auto").decoder()
    assert (decoder.name, decoder.k, type(decoder.drafter)) == ("gs-sjd", 16, ImageJacobi)
    assert decoder.why == "gs-sjd, which the target llamagen is used with"
    assert fresh(tiny, "auto", rule="rejection").decoder().rule.exactness == "lossless"
    assert fresh(tiny, "auto", k=3).decoder().k == 3


def test_an_option_with_its_part_takes_the_place_of_the_methods_own(tiny):
    """`sjd` says `redraw=` itself, and `cspd` has options of a rule that a user may replace."""
    pipe = TextToImagePipeline(**tiny.components)
    assert pipe.use("sjd", **{"drafter.redraw": "coupled"}).decoder().drafter.options.redraw == "coupled"
    with pytest.raises(ValueError, match=r"given twice, as redraw= and as drafter\.redraw="):
        pipe.use("sjd", redraw="coupled", **{"drafter.redraw": "coupled"})


def test_a_saved_pipeline_keeps_how_it_draws_and_ours_draw_as_before(tiny, tmp_path):
    """The shipped model's folder does not say, and has guidance 3 from all codes."""
    assert tiny.sampling == Sampling(3.0) == Sampling(3.0, temperature=1.0, top_k=0, top_p=1.0)
    TextToImagePipeline(**tiny.components, guidance_scale=2.0, top_k=9).save_pretrained(tmp_path)
    again = mmspec.Pipeline.from_pretrained(tmp_path)
    again.set_progress_bar_config(disable=True)
    assert again.sampling == Sampling(2.0, top_k=9)
    call = dict(prompt=PROMPTS, seed=4, output_type="latent")
    assert torch.equal(again(**call).images, tiny(**call, guidance_scale=2.0, top_k=9).images)
    assert torch.equal(again(**call, top_k=0).images, tiny(**call, guidance_scale=2.0).images)


def test_the_forms_of_an_output(tiny):
    forms = {form: tiny(PROMPTS, seed=1, output_type=form) for form in ("pil", "np", "pt", "latent")}
    made = forms["pil"]
    assert type(made) is TextToImageOutput and isinstance(made, ImagePipelineOutput)
    assert made.codes.shape == made.rounds.shape == (2, 4, 4) and [p.size for p in made.images] == [(8, 8)] * 2
    assert forms["np"].images.shape == (2, 8, 8, 3) and forms["pt"].images.shape == (2, 3, 8, 8)
    pixels = (forms["np"].images * 255).round().astype("uint8")
    assert np.array_equal(pixels, np.stack(made.images))
    assert np.array_equal(forms["pt"].images.permute(0, 2, 3, 1).numpy(), forms["np"].images)
    assert torch.equal(forms["latent"].images, made.codes)
    decoded = torch.cat([tiny.decode_units(codes) for codes in made.codes.flatten(1).split(1)])
    assert torch.allclose(decoded / 2 + 0.5, forms["pt"].images) and decoded.abs().max() <= 1
    images, report, codes, rounds = tiny(PROMPTS, seed=1, return_dict=False)
    assert len(images) == 2 and torch.equal(codes, made.codes) and torch.equal(rounds, made.rounds)
    assert report.emitted == 32 and rounds[:, 0, 0].tolist() == [0, 0] and rounds.max() == report.rounds


def test_pictures_of_a_prompt_stand_together_and_do_not_depend_on_their_batch(tiny):
    seeds = [3, 4, 5, 6]
    together = tiny(PROMPTS, num_images_per_prompt=2, seed=seeds).codes
    assert len({tuple(row.flatten().tolist()) for row in together}) == 4
    for row, seed in enumerate(seeds):
        assert torch.equal(tiny(PROMPTS[row // 2], seed=[seed]).codes[0], together[row])
    listed = tiny(PROMPTS, num_images_per_prompt=2, generator=seeded(*seeds)).codes
    assert torch.equal(tiny(PROMPTS[1], generator=seeded(6)[0]).codes[0], listed[3])
    one = tiny(PROMPTS, generator=seeded(9)[0]).codes
    assert torch.equal(tiny(PROMPTS[0], generator=seeded(9)[0]).codes[0], one[0])


def test_negative_prompts_and_embeddings(tiny):
    plain = tiny(PROMPTS, seed=2).codes
    assert torch.equal(tiny(PROMPTS, seed=2, negative_prompt="").codes, plain)
    away = tiny(PROMPTS, seed=2, negative_prompt=["", "apple"]).codes
    assert torch.equal(away[0], plain[0]) and not torch.equal(away[1], plain[1])
    both = tiny(PROMPTS, seed=2, negative_prompt="apple").codes
    assert torch.equal(both[1], away[1]) and not torch.equal(both[0], plain[0])
    made, null = tiny.encode_prompt(PROMPTS), tiny.encode_prompt("apple", guided=False)
    given = dict(prompt_embeds=made.given, prompt_attention_mask=made.mask)
    assert torch.equal(tiny(**given, seed=2).codes, plain)
    negative = dict(negative_prompt_embeds=null.given, negative_prompt_attention_mask=null.mask)
    assert torch.equal(tiny(**given, **negative, seed=2).codes, both)


@pytest.mark.compiled
def test_classes(tiny_classes):
    made = tiny_classes(class_labels=[1, 4], seed=1).codes
    assert torch.equal(fresh(tiny_classes, "plain")(class_labels=torch.tensor([1, 4]), seed=1).codes, made)
    assert torch.equal(tiny_classes(class_labels=1, seed=1).codes[0], made[0])
    # Away from no class is what guidance is; away from itself it is none.
    assert torch.equal(tiny_classes(class_labels=[1, 4], negative_prompt_embeds=torch.tensor([5]), seed=1).codes, made)
    same = tiny_classes(class_labels=1, negative_prompt_embeds=torch.tensor([1]), guidance_scale=5.0, seed=1).codes
    assert torch.equal(same, tiny_classes(class_labels=1, guidance_scale=1.0, seed=1).codes)


MISTAKES = {
    "nothing": (dict(prompt=None), "give one of prompt=, class_labels= and prompt_embeds=; got none"),
    "two": (dict(class_labels=[1, 2]), "got prompt and class_labels"),
    "no list": (dict(prompt=[]), "a list of at least one text"),
    "no texts": (dict(prompt=[3]), "a prompt is a text"),
    "empty": (dict(prompt=["red", "  "]), "prompt 1 is empty"),
    "long": (dict(prompt="red " * 7), "prompt 0 has 7 tokens and this model reads 6"),
    "unknown": (dict(prompt="haert"), "knows no word of the prompt 'haert'; did you mean heart"),
    "strange": (dict(prompt="龍"), "it knows words such as red, blue, heart, cat, face"),
    "labels": (dict(prompt=None, class_labels=1), "this model draws captions"),
    "guidance": (dict(guidance_scale=0.5), "guidance_scale must be a finite number >= 1, got 0.5"),
    "no number": (dict(guidance_scale=float("nan")), "guidance_scale must be a finite number >= 1, got nan"),
    "text for guidance": (dict(guidance_scale="3"), "guidance_scale must be a number, got '3'"),
    "text for pictures": (dict(num_images_per_prompt="2"), "num_images_per_prompt must be an integer >= 0, got '2'"),
    "text for height": (dict(height="8"), "height must be an integer, got '8'"),
    "text for temperature": (dict(temperature="1"), "temperature must be a number, got '1'"),
    "text for top_k": (dict(top_k="1"), "top_k must be an integer, got '1'"),
    "text for k": (dict(k="3"), "k must be an integer, got '3'"),
    "text for a seed": (dict(seed="3"), "seed must be an integer, got '3'"),
    "a number for a generator": (dict(generator=3), "generator is a torch.Generator, or one a picture, not 3"),
    "a number for a prompt": (dict(prompt=3), "a prompt is a text, or a list of at least one text, not 3"),
    "a number for a negative prompt": (dict(negative_prompt=3), "a prompt is a text"),
    "a number for embeddings": (dict(prompt=None, prompt_embeds=3), "prompt_embeds is a tensor"),
    "height": (dict(height=16), "draws 8 × 8 pixels .height × width., not 16 × 8"),
    "width": (dict(width=0), "not 8 × 0"),
    "pictures": (dict(num_images_per_prompt=0), "num_images_per_prompt must be at least 1, got 0"),
    "output": (dict(output_type="jpg"), "output_type is one of pil, np, pt, latent, not 'jpg'"),
    "tensors": (dict(callback_on_step_end_tensor_inputs=["latents"]), "has latents; there is tokens, accepted"),
    "temperature": (dict(temperature=-1.0), "temperature must be >= 0"),
    "top_p": (dict(top_p=1.5), "top_p and min_p must be in"),
    "k": (dict(k=-1), "k must be an integer >= 0"),
    "seeds": (dict(seed=[1, 2, 3]), "3 seeds for 2 pictures; give one, or one a picture"),
    "generators": (dict(generator=seeded(1)), "1 generators for 2 pictures"),
    "both": (dict(seed=1, generator=seeded(1)[0]), "give one of them"),
    "negatives": (dict(negative_prompt=["red"] * 3), "3 negative prompts for 2 prompts"),
    "nothing to lead away from": (dict(negative_prompt="red", guidance_scale=1.0), "needs guidance_scale > 1"),
    "negative unknown": (dict(negative_prompt="龍"), "knows no word"),
    "embeddings": (dict(prompt=None, prompt_embeds=torch.zeros(2, 5, 12)), r"are \[prompt, 6, 12\] of this model"),
    "mask": (
        dict(prompt=None, prompt_embeds=torch.zeros(2, 6, 12), prompt_attention_mask=torch.ones(2, 5)),
        r"the mask of \[2, 6\] embeddings is \[2, 5\]",
    ),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes_are_refused_before_anything_runs(tiny, case, monkeypatch):
    monkeypatch.setattr(type(tiny.decoder().target), "start", lambda *_: pytest.fail("it ran"))
    arguments, says = MISTAKES[case]
    with pytest.raises(ValueError, match=says):
        tiny(**{"prompt": PROMPTS, **arguments})


@pytest.mark.parametrize("labels", [[-1], 5, [], 0.5])
def test_classes_that_there_are_not(tiny_classes, labels):
    with pytest.raises(ValueError, match=r"no class -?\d: this model has the classes 0 to 4|class_labels is a class"):
        tiny_classes(class_labels=labels)
    with pytest.raises(ValueError, match="this model draws classes: give class_labels="):
        tiny_classes("red")


def test_words_that_no_caption_had():
    """A tokenizer of pieces can spell any word, and knows which ones its captions had."""
    spelling = caption_tokenizer(["red heart", "xylem phone", "cat face"], 64, 6)
    assert spelling.unk_token_id not in spelling("xylophone")["input_ids"]
    with pytest.raises(ValueError, match=r"knows no word of the prompt 'xylophone hat'; did you mean phone, heart\?"):
        tokens_of(["xylophone hat"], spelling, 6)
    with pytest.warns(UserWarning, match="does not know xylophone in the prompt") as seen:
        tokens_of(["Red xylophone"], spelling, 6)
    assert seen[0].filename == __file__
    with pytest.raises(ValueError, match="6 words are known; `mmspec generate image --words` lists them all"):
        tokens_of(["quantum"], spelling, 16)
    assert words_of(spelling) == ["cat", "face", "heart", "phone", "red", "xylem"]


@pytest.mark.parametrize("name", ["emoji", "emoji-continuous"])
def test_the_shipped_tokenizers_know_their_words(name):
    tokenizer = load_tokenizer(str(shipped.asset(name) / "tokenizer"))
    for caption in CAPTIONS:
        tokens_of([caption], tokenizer, 16)
    with pytest.raises(ValueError, match="knows no word of the prompt 'xylophone quantum'; did you mean saxophone"):
        tokens_of(["xylophone quantum"], tokenizer, 16)


def test_a_word_among_others_that_is_not_known_is_warned_of(tiny):
    with pytest.warns(UserWarning, match="does not know haert in the prompt 'red haert'; did you mean heart"):
        made = tiny.encode_prompt("red haert")
    assert made.given.shape == (1, 6, 12)


def test_parts_that_do_not_fit_each_other(tiny, tiny_classes):
    sizes = dict(ch=32, z_channels=32, num_res_blocks=1)
    scales = dict(encoder_ch_mult=(1, 1), decoder_ch_mult=(1, 1))
    wrong = {
        "the transformer draws 24, the VQ has 30": dict(vq=LlamaGenVQ(30, **scales, **sizes)),
        "encoder halves 0 times, its decoder doubles 1 times": dict(
            vq=LlamaGenVQ(24, encoder_ch_mult=(1,), decoder_ch_mult=(1, 1), **sizes)
        ),
        "features of 12, the encoder makes 16": dict(text_encoder=CaptionEncoder(9, 6, 16, 1, 2)),
        "reads 6 words, the encoder 7": dict(text_encoder=CaptionEncoder(9, 7, 12, 1, 2)),
        "the tokenizer has 9 tokens and the text encoder knows 8": dict(text_encoder=CaptionEncoder(8, 6, 12, 1, 2)),
        "draws classes, so a text encoder has nothing to do": dict(transformer=tiny_classes.transformer),
    }
    for says, part in wrong.items():
        with pytest.raises(ValueError, match=says):
            TextToImagePipeline(**{**tiny.components, **part})


@pytest.fixture(scope="module")
def published(tiny):
    """As the published text models: T5, whose tokenizer pads on the right."""
    torch.manual_seed(5)
    config = T5Config(vocab_size=9, d_model=12, d_kv=4, d_ff=16, num_layers=1, num_heads=2)
    tokenizer = deepcopy(tiny.tokenizer)
    tokenizer.padding_side = "right"
    parts = {**tiny.components, "text_encoder": T5EncoderModel(config).eval(), "tokenizer": tokenizer}
    pipe = TextToImagePipeline(**parts).use("gs-sjd", k=6)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def test_published_text_models_have_padding_in_front_and_zero(published):
    made = published.encode_prompt([" Red (heart) https://hearts.com", "cat"])
    assert made.mask.tolist() == [[False] * 4 + [True] * 2, [False] * 5 + [True]]
    for row, caption in enumerate(["red heart", "cat"]):
        ids = published.tokenizer(caption, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            alone = published.text_encoder(input_ids=ids).last_hidden_state[0]
        torch.testing.assert_close(made.given[row, -len(alone) :], alone, rtol=1e-4, atol=1e-5)
        assert not made.given[row, : -len(alone)].any()
    # They learned the null caption under the mask of the caption; ours see all of it.
    assert torch.equal(made.null_mask, made.mask)
    assert torch.equal(published(PROMPTS, seed=1).codes, fresh(published, "plain")(PROMPTS, seed=1).codes)


def test_our_models_see_all_of_the_null_caption(tiny):
    made = tiny.encode_prompt(["red heart", "cat"], negative_prompt=["", "blue star"])
    assert made.mask.sum(1).tolist() == [2, 1] and made.null_mask.sum(1).tolist() == [6, 2]
    assert torch.equal(made.null[0], tiny.transformer.cls_embedding.uncond_embedding)


def test_a_published_pipeline_comes_back(published, tmp_path):
    published.save_pretrained(tmp_path)
    again = fresh(mmspec.Pipeline.from_pretrained(tmp_path))
    assert type(again.text_encoder) is T5EncoderModel
    assert torch.equal(again(PROMPTS, seed=1).codes, published(PROMPTS, seed=1).codes)
    file = tmp_path / "text_encoder" / "model.safetensors"
    whole, name = load_file(file), "encoder.block.0.layer.1.DenseReluDense.wo.weight"
    for kept, says in (
        ({k: v for k, v in whole.items() if k != name}, f"1 keys missing .{name}"),
        ({**whole, name: whole[name][:-1].clone()}, f"1 keys of another shape .{name}: .11, 16., not .12, 16."),
    ):
        save_file(kept, file, metadata={"format": "pt"})
        with pytest.raises(ValueError, match=f"do not fit their T5EncoderModel: {says}"):
            mmspec.Pipeline.from_pretrained(tmp_path)


def test_the_manifest_names_the_class_and_a_method_that_there_is():
    target = installed().get("target", "llamagen")
    assert target.load_pipeline() is TextToImagePipeline
    assert installed().get("method", target.default_methods[0].method).drafter == "jacobi"
