"""The streamer of a call: it counts the tokens, ends the call when its client has gone, and keeps log-probabilities."""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from mmspec.serving.request import Request

LEAST = -9999.0
"""Stands for the log-probability of what is impossible, for which JSON has no number; vLLM's."""


@dataclass(frozen=True)
class TokenScore:
    """The model's log-probability of a token, before temperature and processors, and the `top` most probable ones."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


class Watched:
    """A streamer that ends the call when its client has gone; without an `inner` one nobody gets the tokens."""

    def __init__(self, inner: Any, request: Request) -> None:
        self._inner = inner
        self._request = request
        self._prompted = False

    def put(self, value: Tensor) -> None:
        """A token; before the first one the prompt."""
        self._request.go_on()
        self._request.begins()
        if self._prompted:
            self._request.tokens += len(value)
        self._prompted = True
        if self._inner is not None:
            self._inner.put(value)

    def end(self) -> None:
        """Nothing: `close` follows once the call's report is there."""

    def close(self) -> None:
        """Tell the inner streamer that the text is complete."""
        if self._inner is not None:
            self._inner.end()


class Scored(Watched):
    """One that also leaves a `TokenScore` of every token with the request (`mmspec.api.stopping.TakesLogits`)."""

    def __init__(self, inner: Any, request: Request, top: int) -> None:
        super().__init__(inner, request)
        self._top = top
        self._rows: deque[Tensor] = deque()  # of the tokens that are to come: log-probabilities `[vocab]`

    def take_logits(self, logits: Tensor) -> None:
        self._rows.extend(logits.float().log_softmax(-1).cpu())

    def put(self, value: Tensor) -> None:
        for token in value.tolist() if self._rows else ():
            row = self._rows.popleft().clamp(min=LEAST)
            best = row.topk(self._top)
            top = zip(best.indices.tolist(), best.values.tolist(), strict=True)
            self._request.scores.append(TokenScore(token, float(row[token]), tuple(top)))
        super().put(value)


def streamer(inner: Any, request: Request) -> Watched:
    """The streamer of a request's call."""
    return Watched(inner, request) if request.top is None else Scored(inner, request, request.top)


def chat_scores(scores: Iterable[TokenScore], tokenizer: Any) -> dict[str, Any]:
    """Log-probabilities as chats have them."""

    def said(token: int, logprob: float) -> dict[str, Any]:
        text = tokenizer.decode([token])
        return {"token": text, "logprob": logprob, "bytes": list(text.encode())}

    content = [{**said(s.token, s.logprob), "top_logprobs": [said(*each) for each in s.top]} for s in scores]
    return {"content": content, "refusal": None}


def completion_scores(scores: Sequence[TokenScore], tokenizer: Any, offset: int) -> dict[str, Any]:
    """Log-probabilities as completions have them; `offset` characters of tokens came before."""
    texts = [tokenizer.decode([score.token]) for score in scores]
    return {
        "tokens": texts,
        "token_logprobs": [score.logprob for score in scores],
        "top_logprobs": [
            {**{tokenizer.decode([token]): logprob for token, logprob in score.top}, text: score.logprob}
            for score, text in zip(scores, texts, strict=True)
        ],
        "text_offset": [offset + len("".join(texts[:i])) for i in range(len(texts))],
    }
