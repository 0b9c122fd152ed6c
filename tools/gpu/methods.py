"""What real methods cost a round: on the shipped text model, and a head of EAGLE-3's shape on a Llama of 1 B.

The latter's drafts are accepted at a given rate. It has random weights, the sizes of a layer of its target, and scores
32,000 ids, as published heads do.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from mmspec.api.build import decoder_for
from mmspec.bench.generate import PeerGenerate, compiled
from mmspec.core.decoder import Decoder
from mmspec.core.rules.synthetic import Synthetic, SyntheticOptions
from mmspec.hosts.loading import load_model
from mmspec_text.drafters.heads.eagle.checkpoint import Checkpoint
from mmspec_text.drafters.heads.eagle.family import EAGLE, Architecture
from mmspec_text.drafters.heads.eagle.network import EagleNetwork
from mmspec_text.training.new_head import draw_weights
from tools.gpu.common import HALF, MODES, Step
from tools.gpu.equality import methods
from tools.gpu.figures import Ours, Theirs

RATE, SCORED = 0.75, 32_000
FORMS: Mapping[str, Mapping[str, Any]] = {
    "chain of 4": {"form": "chain"},
    "tree of 15": {"width": 4, "nodes": 15},
}
USED = ("default", "compiled")


def new_units(step: Step) -> int:
    return 12 if step.dry else 160


def measure(step: Step, model: str, label: str, mode: str, way: Any, peer: float | None = None) -> float:
    """Time a contestant's calls after the first one: milliseconds a unit."""
    first = way()
    with step.alone():
        calls = [way() for _ in range(1 if step.dry else 3)]
    best = min(calls, key=lambda call: call["ms_per_unit"])
    each = float(best["ms_per_unit"])
    over = {} if peer is None else {"over_generate": round(peer / each, 3)}
    step.say("method", model=model, mode=mode, method=label, **best, **over, first_call_seconds=first["seconds"])
    return each


def peer_of(step: Step, name: str, model: Any, given: Any) -> float | None:
    """transformers' own `generate` with a static cache, compiled: milliseconds a unit."""
    found = list[float]()

    def work() -> None:
        kind = PeerGenerate if step.dry else compiled
        found.append(measure(step, name, "generate", "compiled", Theirs(model, given, new_units(step), kind)))

    step.section("method", work, 40, mode="compiled", method="generate", model=name)
    return found[0] if found else None


def text(step: Step) -> None:
    model, given = load_model(step.text, str(step.device), HALF), step.pieces(1, 96)
    peer, ways = peer_of(step, step.text, model, given), {"plain": {"method": "plain"}, **methods(step)}

    def one(label: str, mode: str) -> None:
        decoder = decoder_for(model, **ways[label], shape="one", compile=MODES[mode])
        measure(step, step.text, label, mode, Ours(step, decoder, given, new_units(step)), peer)

    for mode in (mode for mode in step.modes() if mode in USED):
        for label in ways:
            least = 15 if mode == "compiled" else 6
            step.section("method", partial(one, label, mode), least, mode=mode, method=label)


def head_for(model: Any) -> Checkpoint:
    """A head of EAGLE-3 with random weights."""
    c = model.config
    scored, layers = min(SCORED, c.vocab_size), c.num_hidden_layers
    architecture = Architecture(
        hidden=c.hidden_size,
        intermediate=c.intermediate_size,
        heads=c.num_attention_heads,
        key_heads=c.num_key_value_heads,
        head_dim=c.head_dim,
        layers=1,
        vocab=c.vocab_size,
        draft_vocab=scored,
        features=3,
        target_hidden=c.hidden_size,
        fused=True,
        projected=True,
        own_embedding=False,
        own_output=True,
        final_norm=True,
        embedding_norm=False,
        first_norms=frozenset({"input_layernorm", "hidden_norm"}),
    )
    network = EagleNetwork(architecture, c.vocab_size)
    draw_weights(network, 0)
    ids = torch.arange(scored) * (c.vocab_size // scored)
    maps = {"d2t": ids - torch.arange(scored), "t2d": torch.zeros(c.vocab_size).bool().index_fill(0, ids, True)}
    boundaries = (min(2, layers), (layers + 1) // 2, layers) if layers > 2 else (0, 1, 2)
    return Checkpoint("random", EAGLE, architecture, boundaries, {**network.state_dict(), **maps}, ())


def eagle(step: Step) -> None:
    name = "llama-1b"
    model: Any = step.workload(name).model
    given, checkpoint = step.prompt(1, 32 if step.dry else 512, model.config.vocab_size), head_for(model)
    peer = peer_of(step, name, model, given)

    def one(form: str, mode: str) -> None:
        rule = Synthetic(SyntheticOptions(rate=RATE))
        options = {"model": checkpoint, "probe": False, **FORMS[form]}
        decoder: Decoder = decoder_for(
            model, "eagle", rule=rule, k=4, shape="one", compile=MODES[mode], options=options
        )
        label = f"eagle-3 shape, {form}, synthetic {RATE}"
        measure(step, name, label, mode, Ours(step, decoder, given["input_ids"], new_units(step)), peer)

    for mode in (mode for mode in step.modes() if mode in USED):
        for form in FORMS:
            least = 40 if mode == "compiled" else 8
            step.section("eagle", partial(one, form, mode), least, mode=mode, form=form)


def main() -> None:
    step = Step("methods")
    if not step.arguments.only or "eagle" in step.chosen(()):
        step.section("eagle", lambda: eagle(step), 30)
    if not step.arguments.only or "text" in step.chosen(()):
        step.section("text", lambda: text(step))
    step.say("done")


if __name__ == "__main__":
    with torch.no_grad():
        main()
