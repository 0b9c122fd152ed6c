"""Conversations: as ids for the pipeline, and in the terminal."""

from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import mmspec
from mmspec.api.stops import Pieces
from mmspec.cli.app import build
from mmspec.kits.text.language import encoded
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
    """A line that is shown is not decoded again, and a token that begins the next one keeps its space."""

    class Words(Letters):
        """A space belongs to the token behind it, and is left out at the beginning of a text."""

        def decode(self, ids: Any, skip_special_tokens: bool) -> str:
            return "".join([" of", "\n", " the", " day"][i] for i in ids.tolist()).removeprefix(" ")

    ids, pieces = torch.tensor([0, 2, 1, 2, 3, 1, 1, 3, 1] * 5), Pieces(Words(), ["day\n\n\n"])
    shown = [pieces.more(ids[:n], n == len(ids)) for n in range(1, len(ids) + 1)]
    assert "".join(shown) == Words().decode(ids, True) and pieces.begun == len(ids)


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
