"""The server's side of one open page: a text is written in a thread, and the page is told every round."""

from collections.abc import Callable, Mapping
from threading import Lock, Thread
from typing import Any

from mmspec.api.build import decoder_for
from mmspec.bench.methods import decoder_arguments
from mmspec.core.decoder import Decoder
from mmspec.core.state import State
from mmspec.core.trace import Trace, TracedRound
from mmspec.core.warp import Warp
from mmspec.kits.text.language import encoded
from mmspec.kits.text.pipeline import TextPipeline
from mmspec.serving.live import stage
from mmspec.serving.live.stage import Send

METHODS: Mapping[str, Mapping[str, Any]] = {
    "prompt-lookup": {"k": 7},
    "suffix": {"k": 8},
    "token-recycling": {"k": 6, "nodes": 12},
    "draft-model": {"k": 4, "drafter": None},
    "draft-tree": {"k": 4, "drafter": None, "nodes": 12, "width": 3},
    "plain": {},
}
"""The methods of the page; the draft model is put in where there is `drafter`."""
LONGEST, MOST = 4000, 400
"""Characters of a prompt, and new tokens."""
PATIENCE = 10.0
"""Seconds that a text's end is waited for."""


class LeftError(Exception):
    """The page is gone, or wants another text."""


class ViewSession:
    """A page's text."""

    def __init__(self, pipe: TextPipeline, small: Any, send: Send) -> None:
        self._pipe, self._small, self._send = pipe, small, send
        self._lock = Lock()  # a page may close while one of its messages is followed
        self._leave: Callable[[], None] = lambda: None
        send({"type": "methods", "methods": list(METHODS), "most": MOST})

    def receive(self, message: Mapping[str, Any]) -> None:
        """Follow a message: `write`; see `mmspec.serving.live.stage.Session`."""
        stage.one_of(message, "type", ("write",), "message")
        method, prompt = stage.one_of(message, "method", METHODS), stage.text(message, "prompt", LONGEST)
        tokens, seed = stage.whole(message, "tokens", MOST, 1), stage.whole(message, "seed", 2**31)
        temperature = stage.number(message, "temperature", 0, 10)
        how = {name: self._small if name == "drafter" else value for name, value in METHODS[method].items()}
        decoder = decoder_for(self._pipe.model, **decoder_arguments({"method": method, **how}))
        with self._lock:
            self._leave()
            ends = self._pipe.model.generation_config.eos_token_id
            how = {"limit": tokens, "seed": seed, "warp": Warp.sampling(temperature), "ends": ends}
            self._leave = _Text(self._pipe, decoder, self._send, prompt, how).leave

    def close(self) -> None:
        """End the text."""
        with self._lock:
            self._leave()


class _Text:
    """One text, which is written in a thread; `how` are the arguments of `Decoder.generate`."""

    def __init__(self, pipe: TextPipeline, decoder: Decoder, send: Send, prompt: str, how: Mapping[str, Any]) -> None:
        self._pipe, self._decoder, self._send = pipe, decoder, send
        self._left, self._trace, self._told = False, Trace(), 0
        self._thread = Thread(target=self._write, args=(prompt, how), name="view", daemon=True)
        self._thread.start()

    def leave(self) -> None:
        """Stop after the present round."""
        self._left = True
        self._thread.join(PATIENCE)

    def _write(self, prompt: str, how: Mapping[str, Any]) -> None:
        try:
            self._send({"type": "begun", "prompt": prompt, "method": self._decoder.name})
            inputs = encoded(prompt, self._pipe.tokenizer)
            output = self._decoder.generate(inputs, on_step=self._step, **how)
            self._send({"type": "done", "report": output.report.to_dict(), "says": str(output.report)})
        except LeftError:
            pass
        except Exception as error:  # the page is told, whatever it was
            self._send({"type": "error", "says": f"{type(error).__name__}: {error}"})

    def _step(self, state: State) -> None:
        if self._left:
            raise LeftError
        self._trace.step(state)
        for round in self._trace.rows[0][self._told :]:
            self._send(self._described(round))
        self._told = len(self._trace.rows[0])

    def _described(self, round: TracedRound) -> dict[str, Any]:
        spelled = self._pipe.tokenizer.decode
        each = zip(round.units, round.probabilities, round.margins, strict=True)
        return {
            "type": "round",
            "tokens": [{"text": spelled([unit]), "probability": p, "margin": margin} for unit, p, margin in each],
            "nodes": [
                {"text": spelled([n.unit]), "parent": n.parent, "accepted": n.accepted, "probability": n.probability}
                for n in round.nodes
            ],
        }
