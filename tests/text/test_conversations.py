"""Conversations: as ids for the pipeline, and in the terminal."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast
from typer.testing import CliRunner

import mmspec
from mmspec.api.stopping import Pieces, cut
from mmspec.cli.app import build
from mmspec.hosts.loading import load_model, load_tokenizer
from mmspec.kits.text.language import encoded
from mmspec.kits.text.pipeline import TextPipeline
from mmspec.serving.answers import Texts
from tests.text.test_pipeline import folder  # noqa: F401

TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}[a]{% endif %}"
)
DOG, CATS = ({"role": "user", "content": content} for content in ("a dog", "cats and dogs and cats and "))
TOLD = {"role": "system", "content": "the "}


@pytest.fixture
def place(folder: Path, tmp_path: Path) -> Path:  # noqa: F811
    """The tiny model, whose tokenizer has a template."""
    pipe = mmspec.Pipeline.from_pretrained(folder)
    pipe.tokenizer.chat_template = TEMPLATE
    pipe.model.save_pretrained(tmp_path)
    pipe.tokenizer.save_pretrained(tmp_path)
    return tmp_path


def test_a_conversation_is_written_by_the_template(place: Path) -> None:
    pipe = mmspec.Pipeline.from_pretrained(place, method="prompt-lookup", k=3)
    written = ["[system]the [user]a dog[a]", "[user]cats and dogs and cats and [a]"]
    for prompt, text in (([TOLD, DOG], written[0]), ([CATS], written[1]), ([[TOLD, DOG], [CATS]], written)):
        found, right = (encoded(p, pipe.tokenizer) for p in (prompt, text))
        assert all(torch.equal(found[name], right[name]) for name in right)
        assert pipe(prompt, 12, seed=1).texts == pipe(text, 12, seed=1).texts


@pytest.mark.parametrize(
    ("prompt", "says"),
    [
        ([{"content": "a"}], 'a message is {"role": "user", "content": "…"}, not'),
        ([{"role": "user"}], 'a message is {"role": "user", "content": "…"}, not'),
        ([[DOG], "a dog"], "a prompt is a text, or a list of at least one text"),
        ([[DOG], []], "a prompt is a text, or a list of at least one text"),
        ([DOG, "a dog"], "a prompt is a text, or a list of at least one text"),
    ],
)
def test_mistakes(place: Path, prompt: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        encoded(prompt, mmspec.Pipeline.from_pretrained(place).tokenizer)


def test_without_a_template_messages_are_refused(folder: Path) -> None:  # noqa: F811
    with pytest.raises(ValueError, match="the tokenizer has no chat template"):
        mmspec.Pipeline.from_pretrained(folder)([DOG])


class Letters:
    """A tokenizer of bytes."""

    clean_up_tokenization_spaces = False

    def convert_ids_to_tokens(self, unit: int) -> str:
        return chr(unit)

    def decode(self, ids: Any, skip_special_tokens: bool) -> str:
        return bytes(ids.tolist()).decode(errors="replace")


def test_pieces_hold_back_what_may_change() -> None:
    """An umlaut of two bytes, and the beginning of a stop string, which is shown if another letter follows."""
    ids, pieces = torch.tensor(list("aüb enough end of it".encode())), Pieces(Letters(), ["end", "nd o"])
    shown = [pieces.more(ids[:n], False) for n in range(1, len(ids) + 1)]
    assert shown[:8] == ["a", "", "ü", "b", " ", "", "", "eno"]
    assert "".join(shown) == "aüb enough "
    cut_short = Pieces(Letters(), ["end"])
    assert [cut_short.more(ids[:2], False), cut_short.more(ids[:2], True)] == ["a", "\ufffd"]


def test_pieces_of_lines_are_the_text() -> None:
    """What is shown is not decoded again, and a token that begins a line keeps its space."""

    class Words(Letters):
        """A space belongs to the token behind it, and is left out at the beginning of a text."""

        def decode(self, ids: Any, skip_special_tokens: bool) -> str:
            return "".join([" of", "\n", " the", " day"][i] for i in ids.tolist()).removeprefix(" ")

    ids, pieces = torch.tensor([0, 2, 1, 2, 3, 1, 1, 3, 1] * 5), Pieces(Words(), ["day\n\n\n"])
    shown = [pieces.more(ids[:n], n == len(ids)) for n in range(1, len(ids) + 1)]
    assert "".join(shown) == Words().decode(ids, True) and pieces.begun == len(ids)


SIGNS = ["x", "n", "do", " ", " ", "#", "!", "'", ".", " ' t", "\n", "ü", "é", "…", "“", "😀", "😁"]
"""Characters of one to four bytes, some of which begin with the same bytes, and what tokenizers clean up."""


def byte_level() -> Tokenizer:
    """Tokens of bytes, and of several that end inside of a character."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer, core.decoder = pre_tokenizers.ByteLevel(False, use_regex=False), decoders.ByteLevel()
    trained = trainers.BpeTrainer(vocab_size=290, show_progress=False, initial_alphabet=core.pre_tokenizer.alphabet())
    core.train_from_iterator([a + b for a in SIGNS for b in SIGNS], trained)
    return core


def byte_fallback() -> Tokenizer:
    """Tokens of characters, and of single bytes for all others."""
    units = [*"xnd▁#!'.é", *(f"<0x{byte:02X}>" for byte in range(256))]
    core = Tokenizer(models.BPE({unit: i for i, unit in enumerate(units)}, [], byte_fallback=True))
    core.normalizer = normalizers.Replace(" ", "▁")
    beginning = decoders.Strip(" ", 1, 0)
    core.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), beginning])
    return core


def words() -> Tokenizer:
    """Words, whose spaces are cleaned up."""
    units = [sign.strip() for sign in SIGNS if " " not in sign] + ["t", "##x", "s"]
    core = Tokenizer(models.WordPiece({unit: i for i, unit in enumerate(units)}, unk_token="x"))
    core.pre_tokenizer, core.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece(cleanup=False)
    return core


@pytest.mark.parametrize("made", [byte_level, byte_fallback, words])
def test_a_stream_is_the_whole_answer(made: Callable[[], Tokenizer]) -> None:
    """Random texts, broken ones among them, random stop strings, and rounds of one to four tokens."""
    draw, core = random.Random(7), made()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, clean_up_tokenization_spaces=made is words)
    stopped = 0
    for _ in range(1000):
        ids = core.encode("".join(draw.choices(SIGNS, k=draw.randint(4, 30)))).ids
        for _ in range(draw.choice([0, 0, 3])):
            ids.insert(draw.randrange(len(ids)), draw.randrange(core.get_vocab_size()))
        text = tokenizer.decode(ids)
        begins = [draw.randrange(len(text)) for _ in range(draw.randint(0, 3))]
        stops = [text[i : i + draw.randint(1, 5)] + draw.choice(["", draw.choice(SIGNS)]) for i in begins]
        pieces, shown, n = Pieces(tokenizer, stops), "", 0
        whole = cut(text, stops)
        while n < len(ids):
            n = min(len(ids), n + draw.randint(1, 4))
            shown += pieces.more(torch.tensor(ids[:n]), n == len(ids))
            assert whole.startswith(shown), (ids, stops)
        assert shown == whole, (ids, stops)
        size, texts, sent = draw.randint(1, 4), Texts(stops), ""
        for i in range(0, len(text), size):  # the server's texts come in whole characters
            choice = {"text": text[i : i + size]}
            texts.settle(choice, i + size >= len(text))
            sent += choice.get("text", "")
            assert whole.startswith(sent), (text, stops)
        assert sent == whole, (text, stops)
        stopped += whole != text
    assert 200 < stopped < 800


def run(*arguments: str, said: str) -> Any:
    return CliRunner().invoke(build(), ["chat", *arguments], input=said, env={"COLUMNS": "200"})


def test_a_chat_in_the_terminal(place: Path) -> None:
    """Two questions; the answers are the pipeline's, and the second one is asked behind the first."""
    how = ("--method", "prompt-lookup", "--system", "the ", "--max-new-tokens", "9", "--seed", "5")
    result = run(str(place), *how, said="\na dog\n  \n/help\ncats\n/exot now\n/exit\nnobody hears this\n")
    assert result.exit_code == 0, result.output
    pipe = mmspec.Pipeline.from_pretrained(place, method="plain")
    first = pipe([TOLD, DOG], 9, seed=5, temperature=0.7).texts[0]
    asked = [TOLD, DOG, {"role": "assistant", "content": first}, {"role": "user", "content": "cats"}]
    second = pipe(asked, 9, seed=6, temperature=0.7).texts[0]
    assert first in result.stdout and second in result.stdout
    assert "9 tokens in" in result.stderr and "prompt-lookup (invariant): 18 units" in result.stderr
    assert "/exit, /quit or CTRL-D: leave" in result.stdout
    assert "no command is called '/exot'; did you mean '/exit'? There is: /exit, /help, /quit" in result.stdout


@pytest.mark.parametrize(("end", "turns"), [("/quit\n", 1), ("", 1), ("/usr/bin holds\n", 2)])
def test_a_chat_ends_at_a_command_or_at_the_end_of_what_is_said(place: Path, end: str, turns: int) -> None:
    """A path is no command."""
    result = run(str(place), "--max-new-tokens", "2", said=f"a dog\n{end}")
    assert result.exit_code == 0 and result.stderr.count("tokens in") == turns


def test_a_chat_needs_a_template(folder: Path, tmp_path: Path) -> None:  # noqa: F811
    assert "no chat template" in str(run(str(folder), said="").exception)
    (tmp_path / "template.jinja").write_text(TEMPLATE)
    given = ("--chat-template", str(tmp_path / "template.jinja"), "--max-new-tokens", "3")
    assert run(str(folder), *given, said="").exit_code == 0


def nearly(place: Path) -> Any:
    """A draft model that is wrong now and then: the target with other weights of its last layer's norm."""
    small = load_model(str(place))
    with torch.no_grad():
        noise = torch.randn(small.model.norm.weight.shape, generator=torch.Generator().manual_seed(0))
        small.model.norm.weight.add_(0.5 * noise)
    return small


def test_a_drafter_learns_in_a_chat(place: Path, tmp_path: Path) -> None:
    """The answers are those without it; a drafter that cannot learn is refused, with those that can."""
    nearly(place).save_pretrained(tmp_path / "small")
    load_tokenizer(str(place)).save_pretrained(tmp_path / "small")
    how = ("--method", "draft-model", "--drafter", str(tmp_path / "small"), "--max-new-tokens", "9", "--seed", "5")
    said = "a dog\ncats\na cat\n"
    plain, ours = run(str(place), *how, said=said), run(str(place), *how, "--learn", said=said)
    assert ours.exit_code == 0, ours.output
    assert ours.stdout == plain.stdout and "while it learnt" in ours.stderr and "learnt" not in plain.stderr
    other = run(str(place), "--method", "prompt-lookup", "--learn", said=said)
    assert "prompt-lookup cannot learn; those that can: " in str(other.exception)


def test_a_pipeline_whose_drafter_learns(place: Path) -> None:
    """Lessons between calls, streamed and whole, change the drafter and no text; another decoder ends them."""
    small = nearly(place)
    pipe = TextPipeline(load_model(str(place)), load_tokenizer(str(place))).use("draft-model", drafter=small, k=3)
    before = pipe([DOG], 12, seed=1).texts
    learner = pipe.learn(mmspec.Learning(rate=1e-2, positions="emitted"))
    weights = small.model.norm.weight.clone()
    assert pipe([DOG], 12, seed=1).texts == before and learner.steps == 1 and pipe.learner is learner
    assert "".join(pipe([DOG], 12, seed=1, stream=True)) == before[0] and learner.steps == 2
    assert not torch.equal(small.model.norm.weight, weights)
    stopped = pipe([DOG], 12, seed=1, stream=True)
    next(stopped)
    stopped.close()
    assert learner.steps == 2 and pipe([DOG], 12, seed=1).texts == before and learner.steps == 3
    pipe.use("plain")
    assert pipe([DOG], 12, seed=1).texts == before and learner.steps == 3
    with pytest.raises(ValueError, match="the drafter plain cannot learn"):
        pipe.learn()
