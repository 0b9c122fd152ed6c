"""Ask a player for the next action while frames are made ahead; a call that ends early does not wait for the answer.

A player quits by `None`, or by `StopIteration`, as an iterator without further actions does.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from mmspec_video.playing.frames import FramePlay
from mmspec_video.playing.tokens import TokenPlay


def answer_of(ask: Callable[[], Any], play: FramePlay | TokenPlay) -> Any:
    """The player's answer; None: the player quits.

    Args:
        ask: Asks the player; called in a thread where frames can be made ahead.
        play: Makes the frames.

    Raises:
        Exception: What the player raised.
    """
    try:
        if not play.guesses:
            return ask()
        answer = _in_thread(ask)
        play.ahead(answer.done)
        return answer.result()
    except StopIteration:
        return None


def _in_thread(ask: Callable[[], Any]) -> "Future[Any]":
    """The answer, asked for in a daemon thread: neither CTRL-C nor the interpreter's exit waits for it."""
    answer: Future[Any] = Future()

    def run() -> None:
        try:
            answer.set_result(ask())
        except BaseException as error:  # whoever waits for the answer gets it
            answer.set_exception(error)

    threading.Thread(target=run, name="player", daemon=True).start()
    return answer
