"""The figures of the server: one line of JSON a request in the log, and `/metrics` for Prometheus.

Neither holds what was asked or answered.
"""

import json
import logging
import time
from collections.abc import Collection
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

from mmspec.core.report import Report
from mmspec.registry.printable import shown
from mmspec.serving.request import Request

LOG = logging.getLogger("mmspec.serving")
ROUTES = ("/v1/chat/completions", "/v1/completions", "/v1/images/generations", "/v1/models")
SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
LENGTHS = (1, 1.25, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10, 15)


class Meters:
    """Counts the requests that were answered; `running` are those that are being answered now."""

    def __init__(self, running: Collection[Request]) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)

        def counter(name: str, says: str, *labels: str) -> Counter:
            return Counter(f"mmspec_{name}", says, labels, registry=self._registry)

        def histogram(name: str, says: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"mmspec_{name}", says, registry=self._registry, buckets=buckets)

        self._requests = counter("requests", "Requests that were answered or refused", "route", "status")
        self._tokens = {
            name: counter(f"{name}_tokens", says, "model")
            for name, says in (
                ("prompt", "Tokens of prompts"),
                ("generated", "Tokens of answers"),
                ("drafted", "Tokens that were drafted"),
                ("accepted", "Drafted tokens that became part of an answer"),
            )
        }
        self._passes = counter(
            "passes", "Passes of the model after the prompt, as each text took part in them", "model"
        )
        self._seconds = histogram("request_seconds", "From a request's first byte to the end of its answer", SECONDS)
        self._first = histogram("first_token_seconds", "From a request's first byte to its first token", SECONDS)
        self._length = histogram("acceptance_length", "Tokens a pass, of each request", LENGTHS)
        for name, says, begun in (
            ("texts_waiting", "Texts whose first token is not there yet", False),
            ("texts_running", "Texts that are being written", True),
        ):
            gauge = Gauge(f"mmspec_{name}", says, registry=self._registry)
            gauge.set_function(partial(_count, running, begun))

    def exposition(self) -> bytes:
        """All figures in Prometheus' text format."""
        return generate_latest(self._registry)

    def count(self, request: Request, path: str, status: int, seconds: float) -> None:
        """Count a request that is over, and log it."""
        route = next((route for route in ROUTES if path.startswith(route)), "other")
        report = Report.total(share.report for share in request.shares if share.report is not None)
        prompt, tokens = (sum(vars(s)[name] for s in request.shares) for name in ("prompt_tokens", "tokens"))
        first = None if request.first is None else request.first - request.began
        self._requests.labels(route, str(status)).inc()
        self._seconds.observe(seconds)
        if first is not None:
            self._first.observe(first)
        counted = {"prompt": prompt, "generated": tokens, "drafted": report.drafted, "accepted": report.accepted}
        if request.model is not None:
            for name, number in counted.items():
                self._tokens[name].labels(request.model).inc(number)
            self._passes.labels(request.model).inc(report.row_rounds)
        if report.row_rounds:
            self._length.observe(report.acceptance_length)
        LOG.info(
            json.dumps(
                {
                    "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                    "id": request.id,
                    "route": shown(path),
                    "status": status,
                    "seconds": round(seconds, 4),
                    "first_token_seconds": first and round(first, 4),
                    "model": request.model,
                    "method": report.method if report.row_rounds else None,
                    "texts": len(request.shares),
                    **{f"{name}_tokens": number for name, number in counted.items()},
                    "passes": report.row_rounds,
                    "acceptance_length": round(report.acceptance_length, 3),
                    "error": request.error,
                }
            )
        )


def _count(running: Collection[Request], begun: bool) -> float:
    shares = [share for request in list(running) for share in request.shares if share.report is None]
    return sum(bool(share.tokens) == begun for share in shares)
