"""The child of `Process`: `python -m mmspec.core.overlap.worker`. It ends when the link to its parent does."""

import pickle
import sys
from multiprocessing.connection import Client, Connection

import torch

from mmspec.core.overlap.continuation import Continuation


def serve(link: Connection) -> None:
    """Answer requests, in order."""
    (make,) = pickle.loads(link.recv_bytes())
    model, calls = make(), dict[int, Continuation]()
    while True:
        kind, number, payload = pickle.loads(link.recv_bytes())
        if kind == "open":
            calls[number] = Continuation.begun(model, payload)
        elif kind == "ask":
            link.send_bytes(pickle.dumps((number, calls[number].run(payload))))
        else:
            calls.pop(number, None)


if __name__ == "__main__":
    address, key, threads = pickle.loads(sys.stdin.buffer.read())
    torch.set_num_threads(threads)
    try:
        with Client(address, authkey=key) as parent:
            serve(parent)
    except (EOFError, ConnectionError):
        sys.exit()  # the parent has ended
