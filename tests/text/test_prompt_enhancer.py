"""A prompt enhancer: its texts are plain decoding's, and a picture's noise is the same with it and without it."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

import mmspec
from mmspec.api.prompt_enhancer import ASKED, PromptEnhancer, lane, shaped
from mmspec.shipped import asset
from tests.support.zoo import build
from tests.text.test_components import Words

CALL = {"max_new_tokens": 24, "temperature": 0.3}


def words() -> Any:
    """A tokenizer whose texts are ids."""
    tokenizer = Words()
    tokenizer.chat_template = None  # type: ignore[attr-defined]
    return tokenizer


def enhancer(method: str, **how: Any) -> PromptEnhancer:
    return PromptEnhancer(build("llama"), words(), "again: {prompt}", method=method, generate=CALL, **how)


class Painter:
    """A pipeline whose picture is noise of its generator; it notes its prompts."""

    def __call__(self, prompt: Any, scale: float = 1.0, generator: Any = None) -> Any:
        self.prompt = prompt
        rows = 1 if isinstance(prompt, str) else len(prompt)
        generators = generator if isinstance(generator, list) else [generator] * rows
        return SimpleNamespace(images=[scale * torch.randn(4, generator=each) for each in generators])


def test_texts_are_those_of_plain_decoding() -> None:
    made = enhancer("plain"), enhancer("draft-model", drafter=build("llama"))
    plain, fast = (each(["a cat", "a dog"], seed=3) for each in made)
    assert fast.texts == plain.texts and len(set(plain.texts)) == 2, "each prompt has a lane of its own"
    assert sum(report.accepted for report in fast.reports) > 0 and fast.seconds > 0
    assert enhancer("plain")("a cat", seed=3).texts == plain.texts[:1]
    assert enhancer("plain")(["a dog"], seed=[4]).texts != plain.texts[1:]


@pytest.mark.parametrize("several", [False, True])
def test_the_pictures_noise_is_the_same(several: bool) -> None:
    """A generator, one a prompt, and torch's own: none is moved by the enhancer."""
    prompt: Any = ["a cat", "a dog"] if several else "a cat"

    def generators() -> Any:
        made = [torch.Generator().manual_seed(seed) for seed in (5, 6)]
        return made if several else made[0]

    for drawn in (generators, lambda: None):
        found = []
        for with_it in (False, True):
            pipe: Any = Painter()
            called = enhancer("prompt-lookup").before(pipe) if with_it else pipe
            torch.manual_seed(7)
            found.append((called(prompt, scale=2.0, generator=drawn()).images, torch.get_rng_state()))
            assert (pipe.prompt == prompt) is not with_it
        assert all(torch.equal(a, b) for a, b in zip(found[0][0], found[1][0], strict=True))
        assert torch.equal(found[0][1], found[1][1])
    assert called.enhanced.texts == (pipe.prompt if several else [pipe.prompt])
    assert called.t_enhance > 0 and called.t_image > 0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:this model does not know")
def test_before_our_own_pipeline() -> None:
    """The picture is the one that the pipeline draws for the new prompt by itself."""
    pipe = mmspec.Pipeline.from_pretrained("mmspec/emoji", method="plain")
    text = mmspec.Pipeline.from_pretrained("mmspec/text-1m")
    known = ("red", "heart", "cat", "dog", "sun")  # words that the pipeline knows
    text.tokenizer.decode = lambda ids, **how: " ".join(known[int(unit) % len(known)] for unit in ids)
    before = PromptEnhancer(
        text.model, text.tokenizer, "red {prompt} ", method="suffix", generate={"max_new_tokens": 6}
    )
    called = before.before(pipe)
    drawn = called("heart", generator=torch.Generator().manual_seed(2), guidance_scale=2.0)
    alone = pipe(called.enhanced.texts[0], generator=torch.Generator().manual_seed(2), guidance_scale=2.0)
    assert drawn.images[0].tobytes() == alone.images[0].tobytes() and asset("emoji").is_dir()


def test_chats_nothing_written_and_bad_input() -> None:
    told = []
    chat = words()
    chat.chat_template = "a template"
    chat.apply_chat_template = lambda messages, **how: told.append(messages) or chat("one")
    made = PromptEnhancer(build("llama"), chat, method="plain", generate=CALL)
    made("a cat")
    assert told[0][0]["role"] == "user" and "Prompt: a cat" in told[0][0]["content"]
    chat.decode = lambda ids, **how: " "
    with pytest.warns(UserWarning, match="the enhancer wrote nothing"):
        assert made("a cat").texts == ["a cat"]
    assert len({lane("enhancer", 1, 0), lane("enhancer", 1, 1), lane("enhancer", 2, 0), lane("judge", 1, 0)}) == 4
    assert 0 <= lane("enhancer", 1, 0) < 2**63
    with pytest.raises(ValueError, match=r"\{prompt\} once.* 0 times"):
        PromptEnhancer(build("llama"), words(), "nothing")
    with pytest.raises(ValueError, match="no method is called 'lookup'"):
        enhancer("lookup")
    for prompts, seed, message in (
        ("", 0, "empty prompt"),
        ([], 0, "empty"),
        (["a", "b"], [1], "2 prompts and 1 seeds"),
    ):
        with pytest.raises(ValueError, match=message):
            made(prompts, seed)  # type: ignore[arg-type]


def test_the_aspect_that_is_named_is_the_pictures() -> None:
    """Of as many pixels, on sides of whole multiples of 64; the line that names it is no part of the prompt."""
    told, said = [], iter(["a cat, oil\nAspect: 16:9", "a dog\n**Aspect ratio:** 2 : 3 (tall)", "a hat", "Aspect: 1:1"])
    chat = words()
    chat.chat_template = "a template"
    chat.apply_chat_template = lambda messages, **how: told.append(messages[0]["content"]) or chat("one")
    chat.decode = lambda ids, **how: next(said)
    made = PromptEnhancer(build("llama"), chat, method="plain", generate=CALL, area=(1024, 1024))
    found = made(["cat", "dog", "hat", "bag"])
    assert found.texts == ["a cat, oil", "a dog", "a hat", "bag"] and told[0].endswith("Prompt: cat" + ASKED)
    assert found.sizes == [(768, 1344), (1280, 832), None, (1024, 1024)]
    assert shaped((512, 512), 100.0) == (256, 1024) and shaped((512, 512), 0.01) == (1024, 256)

    def called(text: str, **how: int) -> dict[str, int]:
        nonlocal said
        said, kept = iter([text]), dict[str, int]()
        made.before(lambda prompt, **given: kept.update(given))("cat", **how)
        return kept

    assert called("a cat\nAspect: 3:1") == {"height": 576, "width": 1792}
    assert called("a cat\nAspect: 3:1", height=512) == {"height": 512}
    assert called("a cat") == {}
