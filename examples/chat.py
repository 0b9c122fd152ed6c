"""A conversation with a draft model: `python examples/chat.py MODEL DRAFTER`; one line of input is one message.

Without names the shipped models answer. They know Shakespeare and no conversations, so that their template makes two
persons of a play of you and the model: `echo "But soft, what light is that?" | python examples/chat.py`.
"""

import sys

import mmspec
from mmspec.core.report import Report

PLAY = """{% for message in messages %}{{ "ROMEO" if message.role == "user" else "JULIET" }}:
{{ message.content }}

{% endfor %}JULIET:
"""


def main(model: str = "mmspec/text-14m", drafter: str = "mmspec/text-1m") -> None:
    pipe = mmspec.Pipeline.from_pretrained(model, method="draft-tree", drafter=drafter, k=4)
    pipe.tokenizer.chat_template = pipe.tokenizer.chat_template or PLAY
    messages, reports = [], []
    for line in sys.stdin:
        messages.append({"role": "user", "content": line.strip()})
        answer = pipe(messages, 120, seed=len(reports), stop="\n\n", stream=True)
        text = ""
        for piece in answer:
            print(piece, end="", flush=True)
            text += piece
        print("\n")
        messages.append({"role": "assistant", "content": text})
        reports.append(answer.output.report)
    print(Report.total(reports))


if __name__ == "__main__":
    main(*sys.argv[1:3])
