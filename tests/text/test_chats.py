"""Conversations as training data: a row for every answer, in the target's template; the answer alone is learnt."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from mmspec.hosts.loading import load_tokenizer
from mmspec_text.training.chats import Chat
from mmspec_text.training.data import read_file
from mmspec_text.training.texts import LEAST, Answer, Answers, Stream, Texts, of_sheet, prompts_of, sheet
from tests.support import byte_llama

END = torch.tensor([0])
USER, HO, AGAIN, HA = (
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Ho"},
    {"role": "user", "content": "And?"},
    {"role": "assistant", "content": "<think>hm</think>Ha"},
)
THOUGHTS = (
    "{% for m in messages %}[{{ m.role }}]"
    "{{ m.content if loop.last else m.content.split('</think>')[-1] }}<end>\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
OPENS = byte_llama.CHAT.replace("[assistant]{% endif %}", "[assistant]<think>{% endif %}")
COUNTS = "{{ messages | length }}" + byte_llama.CHAT


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return load_tokenizer(str(byte_llama.save(tmp_path_factory.mktemp("chats") / "tiny", byte_llama.CHAT)))


@pytest.fixture
def rows(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[tuple[str, str]]]:
    """The given part and the answer of every row of a conversation."""

    def of(
        messages: list[Any], template: str = byte_llama.CHAT, variables: Any = None, **more: Any
    ) -> list[tuple[str, str]]:
        monkeypatch.setattr(tokenizer, "chat_template", template)
        found = Chat(tokenizer, variables or {}).answers_in({"messages": messages, **more}, END, "line 1 of a file")
        return [(tokenizer.decode(row.ids[: row.given]), tokenizer.decode(row.ids[row.given :])) for row in found]

    return of


def test_every_answer_is_a_row(rows: Callable) -> None:
    """It ends with the token that ends it: the newline behind it is what the template writes, and no target."""
    first = "[user]Hi<end>\n[assistant]"
    second = first + "Ho<end>\n[user]And?<end>\n[assistant]"
    assert rows([USER, HO, AGAIN, HA]) == [(first, "Ho<end>"), (second, "<think>hm</think>Ha<end>")]


def test_earlier_thoughts_are_left_out_as_the_template_does(rows: Callable) -> None:
    first, second = rows([USER, HA, AGAIN, HA], THOUGHTS)
    assert first == ("[user]Hi<end>\n[assistant]", "<think>hm</think>Ha<end>")
    assert second == ("[user]Hi<end>\n[assistant]Ha<end>\n[user]And?<end>\n[assistant]", first[1])


def test_a_prompt_that_opens_a_thought_which_the_text_has_not(rows: Callable) -> None:
    """The answer then begins where what is before it ends."""
    assert rows([USER, HO], OPENS) == [("[user]Hi<end>\n", "[assistant]Ho<end>")]
    assert rows([USER, HA], OPENS) == [("[user]Hi<end>\n[assistant]<think>", "hm</think>Ha<end>")]


def test_thoughts_on_and_off(rows: Callable, tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A template that closes the thought in the prompt where there are none: then it is no part of the answer."""
    off = "{% if enable_thinking is false %}<think></think>{% endif %}"
    last = "{% if loop.last and m.role == 'assistant' %}" + off + "{% endif %}"
    template = byte_llama.CHAT.replace("{{ m.content }}", last + "{{ m.content }}")
    template = template.replace("[assistant]{% endif %}", "[assistant]" + off + "{% endif %}")
    assert rows([USER, HO], template) == [("[user]Hi<end>\n[assistant]", "Ho<end>")]
    closed = "[user]Hi<end>\n[assistant]<think></think>"
    assert rows([USER, HO], template, {"enable_thinking": False}) == [(closed, "Ho<end>")]
    assert tokenizer.decode(Chat(tokenizer, {"enable_thinking": False}).asked([USER], "a question")) == closed
    for name in ("enable_thoughts", "tokenize"):
        with pytest.raises(ValueError, match=f"has no variable '{name}' that can be set"):
            Chat(tokenizer, {name: True})
    monkeypatch.setattr(tokenizer, "chat_template", None)
    with pytest.raises(ValueError, match="has no variable 'enable_thinking'"):
        Chat(tokenizer, {"enable_thinking": False})


def test_tools_go_to_the_template(rows: Callable) -> None:
    called = {"role": "assistant", "content": None, "tool_calls": [{"name": "clock"}]}
    template = "{% if tools %}{{ tools[0].name }}{% endif %}" + byte_llama.CHAT.replace(
        "m.content", "m.content or 'call'"
    )
    found = rows([USER, called, {"role": "tool", "content": "12"}, HO], template, tools=[{"name": "clock"}])
    assert found[0] == ("clock[user]Hi<end>\n[assistant]", "call<end>") and found[1][1] == "Ho<end>"
    parts = [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}, HO]
    assert rows(parts, byte_llama.CHAT.replace("m.content", "'Hi'"))[0][0] == "[user]Hi<end>\n[assistant]"


@pytest.mark.parametrize(
    ("messages", "template", "said"),
    [
        ([], byte_llama.CHAT, "line 1 of a file has no answer"),
        ([USER], byte_llama.CHAT, "has no answer: a drafter learns the messages of the role 'assistant'"),
        ([HO, USER], byte_llama.CHAT, "has no answer: .* each behind another one"),
        ([USER, {"role": "assistant"}], byte_llama.CHAT, r'message 2 in line 1 .* has a "content" that is no text'),
        ([{"role": "user", "content": [{"type": "image"}]}, HO], byte_llama.CHAT, "message 1 in .* that is no text"),
        (["Hi"], byte_llama.CHAT, r'message 1 in line 1 of a file has no "role"'),
        ([USER, HO], None, "has messages, and the target's tokenizer has no chat template; give texts"),
        ([USER, HO], "{{ raise_exception('no users') }}", "does not take these messages: no users"),
        ([USER, HO], "{{ undefined.missing.part }}", "does not take these messages"),
        ([USER, HO], COUNTS, "writes what is before message 2 in another way once that is there"),
        ([USER, HO], "[user]Hi", "writes nothing of message 2, or all of it"),
    ],
)
def test_conversations_that_train_nothing_are_refused(
    messages: list[Any], template: str | None, said: str, rows: Callable
) -> None:
    with pytest.raises(ValueError, match=said):
        rows(messages, template)


def test_lines_are_counted_as_an_editor_does(tokenizer: Any, tmp_path: Path) -> None:
    """Empty ones, too; and a separator of Unicode's inside a text is no end of a line."""
    file, end = tmp_path / "some.jsonl", '{"messages": [{"role": "user", "content": "Hi"}]}\n'
    file.write_text('\n{"text": "a\u2028b"}\r\n\n' + end)
    with pytest.raises(ValueError, match=r"line 4 of .* has no answer"):
        read_file(file, Chat(tokenizer), 257, END)
    file.write_text('{"text": "a\u2028b"}\n')
    assert tokenizer.decode(read_file(file, Chat(tokenizer), 257, END)[0]) == "<end>a\u2028b"
    for line, said in (('{"text": ', "line 3 of .* cannot be read: Expecting value"), ("7", "holds a int, and every")):
        file.write_text(json.dumps({"text": "a"}) + "\n\n" + line)
        with pytest.raises(ValueError, match=said):
            read_file(file, Chat(tokenizer), 257, END)


def test_what_is_before_a_question_and_before_an_answer(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tokenizer.decode(Chat(tokenizer).opening()) == "[user]"
    assert tokenizer.decode(Chat(tokenizer).asked([USER], "a question")) == "[user]Hi<end>\n[assistant]"
    monkeypatch.setattr(tokenizer, "chat_template", "{{ messages[0].content }}")
    with pytest.raises(ValueError, match="writes nothing before a user's question: give conversations"):
        Chat(tokenizer).opening()


SOME = Answers([Answer(torch.arange(1, 9), 5), Answer(torch.arange(11, 14), 1), Answer(torch.arange(20, 70), 40)], 1.0)


def test_a_batch_of_answers() -> None:
    """Drafts count behind the unit before every unit of an answer; rows begin where they began, or are cut."""
    texts = Texts([SOME, Stream(torch.full((99,), 5), 0.5)], 6, 32, 0)
    seen = set()
    for step in range(40):
        batch = texts.batch_at(step)
        assert batch.ids.shape == batch.counted.shape == (6, 32) and batch.seed != texts.batch_at(step + 1).seed
        for ids, counted in zip(batch.ids.tolist(), batch.counted.tolist(), strict=True):
            learnt = [ids[i + 1] for i in range(31) if counted[i]]
            first = ids[0]
            seen.add(first)
            if first == 5:
                assert all(counted)
            elif first == 1:
                assert ids == [*range(1, 9), *[0] * 24] and learnt == [6, 7, 8]
            elif first == 11:
                assert ids == [11, 12, 13, *[0] * 29] and learnt == [12, 13]
            else:  # a piece of the long row with some of its answer, which begins with 60
                assert learnt and learnt == [one for one in ids[1:16] if one >= 60]
                assert ids == [*range(first, first + 16), *[0] * 16]  # a draft behind the last unit has its rows
    assert seen == {1, 5, 11, 45, 54}
    assert Texts([SOME], 2, 64, 0).batch_at(0).ids.shape[1] >= LEAST
    assert Texts([SOME, Stream(torch.arange(160), 1.0)], 4, 16, 0).epoch == 3  # 3 answers and 10 pieces, 4 at a time


def test_answers_are_stored_and_prompts_are_padded_in_front() -> None:
    read = of_sheet(sheet(SOME.rows))
    assert all(
        torch.equal(one.ids, row.ids) and one.given == row.given for one, row in zip(read, SOME.rows, strict=True)
    )
    assert prompts_of([torch.tensor([4]), torch.tensor([5, 6])]).tolist() == [[-1, 4], [5, 6]]
