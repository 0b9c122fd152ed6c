"""The OpenAI endpoint of `mmspec serve`, with replicas on the machines of a cluster of Ray.

    serve run examples.ray_openai:replicas model=mmspec/text-14m method=suffix number=2
    curl localhost:8000/v1/completions -d '{"prompt": "def main(", "seed": 3}' -H 'content-type: application/json'

Each replica has the model, and lets requests share its passes; Ray sends a request to the one that has fewer. Under an
invariant method the answer is the same from each. Needs `pip install 'mmspec[serve]' 'ray[serve]'` on every machine.
"""

from typing import Any

from ray import serve

from mmspec.serving.app import application
from mmspec.serving.limits import Limits
from mmspec.serving.models import Models, load


def replicas(asked: dict[str, str]) -> Any:
    """Replicas of a server; `asked` has `model`, and may have `method`, `number`, `rows` a pass, and `cpus` or `gpus`
    of each.
    """
    model, method, rows = asked["model"], asked.get("method", "auto"), int(asked.get("rows", 8))
    gpus = float(asked.get("gpus", 0))

    def built() -> Any:
        device = "cuda" if gpus else "cpu"
        return application(Models({model: load(model, device, None, None, {}, rows=rows, method=method)}), Limits())

    class Replica:
        pass

    deployed = serve.deployment(
        num_replicas=int(asked.get("number", 1)),
        max_ongoing_requests=4 * rows,
        ray_actor_options={"num_cpus": float(asked.get("cpus", 1)), "num_gpus": gpus},
    )
    return deployed(serve.ingress(built)(Replica)).bind()
