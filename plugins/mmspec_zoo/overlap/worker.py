"""The child of `Process`: `python -m mmspec_zoo.overlap.worker PIPE DEVICE`. It ends when the pipe does."""

import sys
from multiprocessing.connection import Connection

import torch

from mmspec.bench.timing import step_seconds
from mmspec_zoo.overlap.continuation import Continuation
from mmspec_zoo.overlap.crossing import compute_on, read, written


def serve(link: Connection) -> None:
    """Answer no call, with the seconds of a pass, once the model is there; then answer requests, in order."""
    (make,) = read(link.recv_bytes())
    model, calls = make(), dict[int, Continuation]()
    link.send_bytes(written((0, step_seconds(model))))
    while True:
        kind, number, payload = read(link.recv_bytes())
        if kind == "open":
            calls[number] = Continuation(model, payload)
        elif kind == "ask":
            link.send_bytes(written((number, calls[number].run(payload))))
        else:
            calls.pop(number, None)


if __name__ == "__main__":
    torch.set_num_threads(1)
    compute_on(torch.device(sys.argv[2]))
    try:
        with Connection(int(sys.argv[1])) as parent:
            serve(parent)
    except (EOFError, ConnectionError):
        sys.exit()  # the parent has ended
