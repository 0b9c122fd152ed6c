"""`examples/ray_openai.py` on a cluster of two machines: each has a replica, and both give the plain text of a seed."""

import json
import os
import socket
import urllib.request
from collections.abc import Iterator

import pytest

from tests.support.serving import Plain

ray = pytest.importorskip("ray")
serve = pytest.importorskip("ray.serve")

MODEL = "mmspec/text-1m"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    from ray.cluster_utils import Cluster

    from examples.ray_openai import replicas

    os.environ.update(RAY_AUTH_MODE="disabled", RAY_USAGE_STATS_ENABLED="0")
    machine = {"num_cpus": 1, "object_store_memory": 2**28}
    cluster = Cluster(initialize_head=True, head_node_args={**machine, "include_dashboard": False})
    cluster.add_node(**machine)
    ray.init(address=cluster.address, log_to_driver=False)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    serve.run(replicas({"model": MODEL, "method": "prompt-lookup", "number": "2"}))
    yield f"http://127.0.0.1:{port}"
    serve.shutdown()
    ray.shutdown()
    cluster.shutdown()


def test_replicas_on_two_machines_answer_alike(url: str) -> None:
    """A replica takes a core, and a machine has one."""
    states = serve.status().applications["default"].deployments["Replica"].replica_states
    assert states == {"RUNNING": 2}
    plain = Plain(MODEL)
    expected = plain.text(plain.ids("def main(", 20, 3, do_sample=True, temperature=1.0))
    body = json.dumps({"prompt": "def main(", "seed": 3, "max_tokens": 20, "temperature": 1}).encode()
    for _ in range(6):
        asked = urllib.request.Request(f"{url}/v1/completions", body, {"content-type": "application/json"})
        with urllib.request.urlopen(asked, timeout=120) as answer:
            assert json.load(answer)["choices"][0]["text"] == expected
