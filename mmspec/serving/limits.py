"""Limits of a request: more is refused before anything is decoded, so that no client can take all of a machine."""

from dataclasses import dataclass

STOPS, STOP_LENGTH = 16, 256
"""Most stop strings of a request, and most characters of one: each is compared with every token of the vocabulary."""


class Refused(ValueError):
    """A request is refused, with an HTTP status and headers of its own."""

    status = 400
    headers: tuple[tuple[bytes, bytes], ...] = ()


class TooLargeError(Refused):
    """A request's body has more bytes than the server reads."""

    status = 413


@dataclass(frozen=True)
class Limits:
    body: int = 1_000_000  # most bytes of a request's body
    prompt: int = 8192  # most tokens of a prompt
    new: int = 4096  # most new tokens
    pictures: int = 4  # most pictures
    texts: int = 16  # most texts: prompts times `n`
    connections: int = 256  # most connections at a time; further ones get HTTP 503
    seconds: float | None = None  # most seconds of a request, its answer included; None: any

    def refuse_body(self, size: int) -> None:
        """Refuse a body of `size` bytes, or of which so many have come."""
        if size > self.body:
            raise TooLargeError(f"the request's body is larger than {self.body:,} bytes, the most that is read here")

    def refuse_pictures(self, wanted: int) -> None:
        """Refuse to draw `wanted` pictures in one request."""
        if not 1 <= wanted <= self.pictures:
            raise ValueError(f"n={wanted}: one request draws 1 to {self.pictures} pictures; send several requests")

    def refuse_texts(self, prompts: int, each: int) -> None:
        """Refuse to write `each` texts for every one of `prompts` in one request."""
        if not 1 <= prompts * each <= self.texts:
            raise ValueError(f"{prompts} prompts with n={each}: one request gets 1 to {self.texts} texts; send several")

    def new_tokens(self, prompt: int, wanted: int | None, default: int, context: int | None) -> int:
        """New tokens of a call; where it wants no number, `default`, if the `context` (None: any) has room."""
        longest = self.prompt if context is None else min(self.prompt, context - 1)
        if not prompt:
            raise ValueError("the prompt is empty; give some text to continue")
        if prompt > longest:
            why = "the server takes" if longest == self.prompt else f"the model's context of {context} takes"
            raise ValueError(f"the prompt has {prompt} tokens and {why} {longest}; shorten it")
        room = self.new if context is None else min(self.new, context - prompt)
        if wanted is None:
            return min(default, room)
        if wanted < 1:
            raise ValueError(f"max_tokens={wanted}: ask for at least one new token")
        if wanted > self.new:
            raise ValueError(f"max_tokens={wanted}: the server gives at most {self.new} new tokens a request")
        if wanted > room:
            raise ValueError(
                f"a prompt of {prompt} tokens and max_tokens={wanted} go beyond the model's context of {context}; "
                f"ask for at most {room}, or shorten the prompt"
            )
        return wanted


def refuse_stops(stops: object) -> None:
    """Refuse stop strings that are no texts, empty, too long or too many."""
    each = [stops] if isinstance(stops, str) else stops
    if not isinstance(each, list) or not all(isinstance(stop, str) and stop for stop in each):
        raise ValueError(f"stop is a text or a list of texts, none of them empty, not {stops!r:.100}")
    if len(each) > STOPS or max(map(len, each), default=0) > STOP_LENGTH:
        raise ValueError(f"stop takes at most {STOPS} texts of at most {STOP_LENGTH} characters")
