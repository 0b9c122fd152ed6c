"""The server's side of one open page: a picture is drawn twice, and the page is shown both after every round."""

import time
from collections.abc import Mapping
from threading import Lock, Thread
from typing import Any

from diffusers.image_processor import VaeImageProcessor
from torch import Tensor

from mmspec.api.pipeline import Pipeline
from mmspec.serving.live import stage
from mmspec.serving.live.stage import Send, png

METHODS = {name: {"k": 16} for name in ("gs-sjd", "sjd", "mc-sjd", "gsd", "lantern")}
"""The methods that are shown beside plain decoding; the last two are lossy, so that their pictures are others."""
LONGEST = 200  # characters of a caption
PATIENCE = 10.0  # seconds that a picture's end is waited for


class DrawSession:
    """A page's picture, by a model whose modules all pages share."""

    def __init__(self, pipe: Any, name: str, send: Send) -> None:
        self._pipe, self._name, self._send = pipe, name, send
        self._drawings: list[_Drawing] = []
        self._lock = Lock()  # a page may close while one of its messages is followed
        send({"type": "methods", "methods": list(METHODS)})

    def receive(self, message: Mapping[str, Any]) -> None:
        """Follow a message: `draw`; see `mmspec.serving.live.stage.Session`."""
        stage.one_of(message, "type", ("draw",), "message")
        method, caption = stage.one_of(message, "method", METHODS), stage.text(message, "caption", LONGEST)
        seed, guidance = stage.whole(message, "seed", 2**31), stage.number(message, "guidance", 1, 20)
        with self._lock:
            self._leave()
            self._send({"type": "begun", "panes": ["plain", method]})
            call = {"prompt": caption, "seed": seed, "guidance_scale": guidance}
            for number, (name, how) in enumerate((("plain", {}), (method, METHODS[method]))):
                pipe = Pipeline.from_pretrained(self._name, method=name, **self._pipe.components, **how)
                pipe.set_progress_bar_config(disable=True)
                self._drawings.append(_Drawing(number, pipe, call, self._send))

    def close(self) -> None:
        with self._lock:
            self._leave()

    def _leave(self) -> None:
        for drawing in self._drawings:
            drawing.leave()
        self._drawings = []


class _Drawing:
    def __init__(self, number: int, pipe: Any, call: Mapping[str, Any], send: Send) -> None:
        self._number, self._pipe, self._call, self._send = number, pipe, call, send
        self._left, self._began = False, time.perf_counter()
        self._thread = Thread(target=self._draw, name=f"drawing {number}", daemon=True)
        self._thread.start()

    def leave(self) -> None:
        """Stop after the present round."""
        self._left = True
        self._thread.join(PATIENCE)

    def _draw(self) -> None:
        tensors = ("preview", "tokens")
        how = {"callback_on_step_end": self._shown, "callback_on_step_end_tensor_inputs": tensors}
        try:
            drawn = self._pipe(**self._call, **how)
            if not self._left:
                self._tell("done", says=str(drawn.report), png=png(drawn.images[0]))
        except Exception as error:  # the page is told, whatever it was
            self._tell("error", says=f"{type(error).__name__}: {error}")

    def _shown(self, pipe: Any, step: int, timestep: int, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
        if self._left:
            pipe._interrupt = True
            return {}
        codes = tensors["tokens"][0]
        picture = VaeImageProcessor().postprocess(tensors["preview"].detach(), "pil")[0]
        self._tell("round", number=step, drawn=int((codes >= 0).sum()), of=len(codes), png=png(picture))
        return {}

    def _tell(self, kind: str, **more: Any) -> None:
        spent = time.perf_counter() - self._began
        self._send({"type": kind, "pane": self._number, "seconds": round(spent, 3), **more})
