"""A player is asked for the next action; frames are made ahead meanwhile, and nobody waits for a player who is left.

A player quits by `None`, or by `StopIteration`, as an iterator that has no more actions does.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from mmspec_video.playing.frames import FramePlay
from mmspec_video.playing.tokens import TokenPlay


def answer_of(ask: Callable[[], Any], play: FramePlay | TokenPlay) -> Any:
    """What the player does; None: they quit.

    Args:
        ask: Asks them; where frames can be made ahead, in a thread of their own.
        play: What makes the frames.

    Raises:
        Exception: What the player raised.
    """
    try:
        if isinstance(play, TokenPlay) or not play.decoder.k:
            return ask()
        answer = _begun(ask)
        play.ahead(answer.done)
        return answer.result()
    except StopIteration:
        return None


def _begun(ask: Callable[[], Any]) -> "Future[Any]":
    """A daemon's thread, and none of an executor, which everybody would wait for: after CTRL-C, and at Python's end."""
    answer: Future[Any] = Future()

    def run() -> None:
        try:
            answer.set_result(ask())
        except BaseException as error:  # whoever waits for the answer gets it
            answer.set_exception(error)

    threading.Thread(target=run, name="player", daemon=True).start()
    return answer
