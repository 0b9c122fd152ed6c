"""One quick request to the hub, because its own client retries six times with pauses before it fails."""

import os
from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import Any

from huggingface_hub import get_hf_file_metadata, hf_hub_url, try_to_load_from_cache
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, OfflineModeIsEnabled

SECONDS = 1.5
"""How long the hub may take to answer, DNS lookup included."""
CONFIG = "config.json"


def refuse_unreachable(name: str) -> None:
    """Refuse a hub name whose config is neither in the local cache nor, at one attempt, on the hub.

    Args:
        name: A hub name, or an existing path, which is not checked.

    Raises:
        ValueError: The config is not available; the message says why.
    """
    if os.path.exists(name):
        return
    try:
        if not isinstance(try_to_load_from_cache(name, CONFIG), str):
            _within(SECONDS, lambda: get_hf_file_metadata(hf_hub_url(name, CONFIG), timeout=SECONDS))
    except HFValidationError as error:
        raise ValueError("a name there is written organisation/name") from error
    except OfflineModeIsEnabled as error:
        raise ValueError("HF_HUB_OFFLINE is set, and it was never loaded here") from error
    except HfHubHTTPError as error:
        raise ValueError(f"it says: {str(error).splitlines()[0]}") from error
    except TimeoutError as error:
        raise ValueError(f"it does not answer within {SECONDS} s") from error
    except Exception as error:  # the hub's client may use one of several HTTP libraries
        raise ValueError(f"it cannot be reached: {error}") from error


def _within(seconds: float, ask: Callable[[], Any]) -> Any:
    """The result of `ask`, or TimeoutError. DNS lookups have no timeout, so the thread may be left behind."""
    answer: Future[Any] = Future()

    def run() -> None:
        try:
            answer.set_result(ask())
        except Exception as error:
            answer.set_exception(error)

    Thread(target=run, daemon=True).start()
    return answer.result(seconds)
