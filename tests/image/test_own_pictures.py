"""Pictures of a language model that is nobody's: its user names the VQ and the ids of the codes."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import AutoencoderKL, DiffusionPipeline, VQModel
from transformers import LlamaForCausalLM

import mmspec
from mmspec.registry import fitting, installed
from mmspec_image.rules.relax import Codes
from mmspec_image.specs import METHODS, OWN_PICTURES
from mmspec_image.targets.written import OwnPicturesTarget
from tests.support.examples.written import tiny_emu3, tiny_llama
from tests.support.half import HALF
from tests.support.pages import blocks
from tests.support.picture_pipes import quiet, vq
from tests.support.zoo import ARCHITECTURES, RECURRENT, VOCAB, build

FIRST, CODES, UNITS = 48, range(48, 64), 24
GIVEN: dict[str, Any] = {"vq": vq(16), "codes": CODES}
OURS = [method for method in METHODS if method.name in fitting(installed(), OWN_PICTURES.offers)]
DRAWN = [("auto", {}), ("gs-sjd", {"k": 8}), ("gs-sjd", {"init": "random"}), ("gs-sjd-pac", {"k": 6})]
CALLS = {"greedy": {}, "sampled": {"do_sample": True, "top_k": 12}}
AWAY = torch.tensor([[5, 7], [6, 7]])


def drawn(model: Any, padded: bool = True, **how: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids behind two prompts, of two lengths if `padded`, and the state in which the call leaves torch's generator."""
    ids = torch.tensor([[0, 0, 9, 4], [3, 8, 2, 4]])[:, 0 if padded else 2 :]
    torch.manual_seed(3)
    words = list(range(FIRST))
    made = model.generate(ids, attention_mask=(ids != 0).long(), max_new_tokens=UNITS, suppress_tokens=words, **how)
    return made[:, ids.shape[1] :], torch.get_rng_state()


@pytest.mark.compiled
@pytest.mark.parametrize("guided", [False, True], ids=["free", "guided"])
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(("method", "options"), DRAWN, ids=lambda value: value if isinstance(value, str) else "")
def test_codes_and_the_generators_state_equal_unmodified_generate(
    method: str, options: dict[str, Any], call: str, guided: bool
) -> None:
    model = tiny_llama()
    how = CALLS[call] | ({"guidance_scale": 3.0, "negative_prompt_ids": AWAY} if guided else {})
    expected, state = drawn(model, **how)
    with mmspec.enable(model, method, **GIVEN, **options) as spec:
        found, after = drawn(model, **how)
    assert torch.equal(found, expected) and torch.equal(after, state)
    assert bool((found >= FIRST).all()) and spec.report is not None and spec.report.accepted


QUICK = ("gpt2", "gemma3_text", "qwen3_moe", "jamba")
"""A table of positions, windows, experts, recurrent layers."""


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in QUICK else pytest.mark.slow) for n in (*ARCHITECTURES, *RECURRENT)]
)
def test_any_decoder_will_do(name: str) -> None:
    model, codes = build(name), range(VOCAB - 16, VOCAB)
    expected = drawn(model, padded=False, do_sample=True)[0]
    with mmspec.enable(model, "gs-sjd", k=6, vq=GIVEN["vq"], codes=codes) as spec:
        assert torch.equal(drawn(model, padded=False, do_sample=True)[0], expected)
    assert spec.report is not None and (spec.report.accepted or name not in QUICK)


@HALF
def test_in_half_precision_codes_equal_plain_ones_of_the_same_shape() -> None:
    model = LlamaForCausalLM(tiny_llama().config).bfloat16().eval()
    how = {"do_sample": True, "guidance_scale": 3.0, "negative_prompt_ids": AWAY}
    with mmspec.enable(model, "plain", shape=7, **GIVEN):
        expected = drawn(model, **how)[0]
    with mmspec.enable(model, "gs-sjd", k=6, shape="one", **GIVEN) as spec:
        assert torch.equal(drawn(model, **how)[0], expected)
    assert spec.report is not None and spec.report.accepted


@pytest.mark.parametrize("method", OURS, ids=lambda method: method.name)
def test_every_picture_method_draws_codes(method: Any) -> None:
    model = tiny_llama()
    expected = drawn(model, do_sample=True)[0]
    with mmspec.enable(model, method.name, **GIVEN) as spec:
        found = drawn(model, do_sample=True)[0]
    assert bool((found >= FIRST).all()) and spec.report is not None and spec.report.accepted
    assert torch.equal(found, expected) or method.exactness != "invariant"


def test_all_methods_of_pictures_fit() -> None:
    assert [method.name for method in OURS] == [method.name for method in METHODS]


def test_auto_draws_by_an_exact_method_of_pictures() -> None:
    handle = mmspec.enable(tiny_llama(), **GIVEN)
    handle.disable()
    assert (handle.method, handle.why) == ("gs-sjd", "gs-sjd, which the target own-pictures is used with")


def test_rules_compare_codes_by_the_entries_or_the_models_embeddings() -> None:
    model, table = tiny_llama(), vq(16).quantize.embedding.weight
    ids = [*reversed(CODES)]
    for given in (vq(16), table.detach()):
        target = OwnPicturesTarget(model, vq=given, codes=ids)
        entries, own = Codes.of(target), Codes.of(target, embeddings=True)
        assert torch.equal(entries.vectors, table) and torch.equal(
            own.vectors, model.get_input_embeddings().weight[ids]
        )
        assert entries.rows[ids].tolist() == list(range(16))
        assert bool((entries.rows[:FIRST] == -1).all())


def test_one_call_takes_them_too() -> None:
    model = tiny_llama()
    once = mmspec.custom_generate("gs-sjd", **GIVEN)
    expected = drawn(model, do_sample=True)[0]
    assert torch.equal(drawn(model, do_sample=True, custom_generate=once)[0], expected)


class Drawing(DiffusionPipeline):  # type: ignore[misc]  # a user's pipeline
    def __init__(self, model: LlamaForCausalLM, vq: VQModel) -> None:
        super().__init__()
        self.register_modules(model=model, vq=vq)

    def __call__(self) -> torch.Tensor:
        codes = drawn(self.model, do_sample=True)[0] - FIRST
        shape = (len(codes), 4, 6, 4)
        pixels: torch.Tensor = self.vq.decode(codes.flatten(), force_not_quantize=True, shape=shape).sample
        return pixels


def test_a_users_pipeline_that_calls_generate_is_enabled_whole() -> None:
    pipe = Drawing(tiny_llama(), GIVEN["vq"])
    expected = pipe()
    with mmspec.enable(pipe, "gs-sjd", **GIVEN) as spec:
        assert torch.equal(pipe(), expected)
        assert list(spec.components) == ["model"] and spec.reports["model"].accepted


def test_the_pages_pipeline_is_saved_and_loaded(tmp_path: Path) -> None:
    page = next(Path(mmspec.__file__).parents[1].glob("docs/start/own_picture_model.md"))
    code = next(code for code in blocks(page) if "class DiscPictures" in code)
    assert len(code.splitlines()) <= 40
    names: dict[str, Any] = {"torch": torch, "LlamaForCausalLM": LlamaForCausalLM, "VQModel": VQModel}
    names |= {"WORDS": ["left", "right", ""], "FIRST": FIRST, "N": 16}
    exec(compile(code, page.name, "exec"), names)
    pipe = quiet(names["DiscPictures"](tiny_llama(), GIVEN["vq"]).use("gs-sjd", k=8))
    how: dict[str, Any] = {"seed": [0, 1], "output_type": "latent"}
    expected = pipe(["left", "right"], **how).images
    pipe.save_pretrained(tmp_path / "saved")
    again = quiet(names["DiscPictures"].from_pretrained(tmp_path / "saved"))
    made = again(["left", "right"], **how)
    assert torch.equal(made.images, expected) and again.decoder().k == 8
    assert torch.equal(again.use("plain")(["left", "right"], **how).images, expected)
    assert again.use().decoder().name == "gs-sjd"


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no codes": ({"vq": vq(16)}, r"codes= is missing: the target 'own-pictures' takes vq= \(the VQ .*\) and codes= \("),
    "no VQ": ({"codes": CODES}, r"vq= is missing"),
    "codes beyond the vocabulary": (
        GIVEN | {"codes": range(50, 66)},
        r"from 50 to 65, and the model's ids from 0 to 63",
    ),
    "codes below zero": (GIVEN | {"codes": range(-1, 15)}, r"from -1 to 14"),
    "fewer codes than entries": (GIVEN | {"codes": range(48, 63)}, r"16 entries, and codes= has 15 ids, .*first \+ 16"),
    "a code twice": (GIVEN | {"codes": [48, *range(48, 63)]}, r"16 ids, 15 of them different"),
    "a number for codes": (GIVEN | {"codes": 16}, r"such as range\(first, first \+ 16\); not 16"),
    "halves for codes": (GIVEN | {"codes": [0.5] * 16}, r"codes= is the model's ids"),
    "an autoencoder": (
        GIVEN | {"vq": AutoencoderKL(block_out_channels=(8,), norm_num_groups=4)},
        r"quantize.embedding.*table of them, a tensor \[code, width\]; a AutoencoderKL has none",
    ),
    "a name": (GIVEN | {"vq": "my/vq"}, r"a str has none"),
    "a misspelling": (GIVEN | {"kodes": 3}, r"no option is called 'kodes'.* codes"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused_before_anything_runs(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, (given, why) = tiny_llama(), REFUSED[what]
    monkeypatch.setattr(type(model), "forward", lambda *args, **kwargs: pytest.fail("a pass ran"))
    with pytest.raises((ValueError, TypeError), match=why):
        mmspec.enable(model, "gs-sjd", **given)
    assert "generate" not in vars(model)


def test_a_model_that_knows_its_codes_is_given_none() -> None:
    with pytest.raises(ValueError, match="a Emu3ForConditionalGeneration knows its codes itself: leave them out"):
        mmspec.enable(tiny_emu3(), "gs-sjd", **GIVEN)


def test_the_refusal_of_a_text_model_says_how_to_give_a_codebook() -> None:
    with pytest.raises(ValueError) as refused:
        mmspec.enable(tiny_llama(), "gs-sjd")
    said = str(refused.value)
    assert re.search(
        r"needs codebook.* Give vq= \(the VQ .*\) and codes= \(.*\), and the target is 'own-pictures'", said
    )
    page = re.search(r"docs/\S+\.md", said)
    assert page and (Path(mmspec.__file__).parents[1] / page[0]).is_file()
