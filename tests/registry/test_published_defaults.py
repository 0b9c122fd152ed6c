"""A method under a paper's name runs, without options, with the numbers of the paper or of its authors' code."""

from typing import Any

import pytest

import mmspec
from mmspec.api.build import DEFAULT_K
from mmspec.registry import installed, pair
from mmspec.registry.options import explain

PUBLISHED: dict[str, tuple[dict[str, Any], str]] = {
    "bild": ({"k": 10, "sure": 0.6}, "kssteven418/BigLittleDecoder: num_small_iters, the threshold of its fallback"),
    "clover": ({"form": "clover", "nodes": 4}, "XiaoBin1992/clover: README, clover-v1 sample strategy"),
    "cspd": ({"tau": "released"}, "the released code, whose distances are divided by 42"),
    "dyspec": ({"k": 10, "form": "heap", "nodes": 64}, "notes on the paper: 64 to 768 nodes, 10 to 30 deep"),
    "fly": ({"k": 15}, "the paper"),
    "gated-lora": ({"form": "chain"}, "notes on the paper: quadratic decoding; a file says how many masks there are"),
    "gsd": (
        {"k": 16, "init": "random", "redraw": "independent", "size": 14, "difference": 0.15, "distance": 0.5},
        "junhyukso/GSD: test_GSD.py, scheduler/jacobi_iteration_lumina_mgpt.py",
    ),
    "lantern": ({"rule.k": 1000, "delta": 0.1}, "jadohu/LANTERN: entrypoints/generate_images.py"),
    "mirror-sd": ({"k": 7, "branches": 8}, "notes on the paper: γ and κ"),
    "ppd": ({"form": "sparse", "budget": 63}, "hmarkc/parallel-prompt-decoding: tree-length of gen_model_answer"),
    "rapid": (
        {"k": 10, "eta": 10.0, "alpha": 0.1, "chunk": 512, "chunks": 16},
        "John-AI-Lab/RAPID: readme.md, eval/pred_longbench.py",
    ),
    "sjd": (
        {"k": 16, "init": "random", "redraw": "independent"},
        "tyshiwo1/Accelerating-T2I-AR-with-SJD: test_lumina_mgpt.py, test_emu3.py",
    ),
    **dict.fromkeys(
        ("suffix", "suffix-tree"),
        (
            {"max_match": 64, "factor": 1.0, "threshold": 0.1},
            "snowflakedb/ArcticInference: suffix_decoding/cache.py; `k` is the server's there",
        ),
    ),
    "swift": (
        {"k": 25, "sure": 0.8, "skip": 0.45, "window": 32, "nodes": 250},
        "hemingkx/SWIFT: model/swift/utils.py, eval_llama.sh; 250 are all candidates of 25 depths",
    ),
    "triforce": (
        {"k": 6, "budget": 4096, "chunk": 8, "cache": "retrieval"},
        "Infini-AI-Lab/TriForce: test/on_chip.py, README",
    ),
}
"""By method: what it has without options, `k` being that of drafts, and where the numbers are published."""
OURS: dict[str, str] = {
    **dict.fromkeys(("llmcad", "pearl", "saguaro", "sequoia"), "lengths are measured, or follow the draft model"),
    **dict.fromkeys(("omnidraft", "rasd", "specmemo", "vocab-trim", "s2d"), "no code is public"),
    "ppd-model": "the draft model's own prompt tokens say how far it drafts",
    **dict.fromkeys(("judge", "ambedkar", "assd", "stree", "rsd"), "the papers try several, and name none"),
    **dict.fromkeys(("branch-prediction", "nfd", "student"), "they follow the player"),
    **dict.fromkeys(("del", "layer-skip"), "exits are of the authors' models"),
    **dict.fromkeys(("eagle", "mtp", "draft-tree", "token-recycling", "rest", "lookahead"), "smaller trees on a CPU"),
    **dict.fromkeys(
        ("medusa", "hydra", "clover-2", "p-eagle", "falcon", "dflash", "mlp-speculator", "arctic-lstm", "pard"),
        "a head's file says how far it drafts",
    ),
    **dict.fromkeys(("gemma4-assistant", "draft-model", "cascade", "jacobi-text", "grammar"), "not the paper's method"),
    "prompt-lookup": "longer drafts cost nothing to make",
    **dict.fromkeys(("gs-sjd", "mc-sjd", "frame-gs-sjd", "gs-sjd-pac", "sjd-pac"), "a pipeline says its window"),
    **dict.fromkeys(("reflection", "draft-reflection", "denoise-ahead", "causal-sets"), "a pipeline says its window"),
}
"""Methods with a paper whose defaults are ours, and why."""
METHODS = {method.name: method for method in installed().components("method") if method.paper}


def of(name: str) -> dict[str, Any]:
    """The values that a method has without options, on a CPU, as text; options of the rule also as `rule.x`."""
    parts = pair(installed(), METHODS[name])
    declared = {"drafter": parts.drafter, "rule": parts.rule}
    values: dict[str, Any] = {}
    for part, spec in declared.items():
        options = spec.load_options() if spec else None
        lines = explain(options) if options else []
        values |= {f"{part}.{line.name}": line.default for line in lines}
        values |= {line.name: line.default for line in lines if line.name not in values}
    values |= {key: repr(value) for key, value in METHODS[name].defaults.items()}
    return values | {"k": repr(METHODS[name].k or DEFAULT_K)}


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_defaults_are_the_published_ones(name: str) -> None:
    expected, source = PUBLISHED[name]
    found = of(name)
    assert {key: found[key] for key in expected} == {key: repr(value) for key, value in expected.items()}, source


def test_every_method_with_a_paper_has_its_numbers_or_a_reason() -> None:
    assert sorted([*PUBLISHED, *OURS]) == sorted(METHODS)


def test_online_learning_has_the_published_rate() -> None:
    assert mmspec.Learning().rate == 1e-5, "LiuXiaoxuanPKU/OSD: bash_scripts/online/sharp.sh"
