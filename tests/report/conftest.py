"""A small benchmark as `mmspec bench text` might write it: methods, peers, modes, a batch, a lossy method, limits."""

from typing import Any

import pytest

from mmspec.report.result import Peer, Row
from tools.report.whole import Limits, WholeResult

PLAIN_S = {"code, greedy": [2.0, 2.1, 2.2], "prose, T = 0.8": [1.0, 1.1, 1.0]}
LENGTHS = {"plain": 1.0, "prompt-lookup": 2.0, "auto": 1.6}


def row(method: str, setting: str, factor: float, **fields: Any) -> Row:
    """A row that is `factor` times as fast as plain decoding, a little less in its last repeat."""
    plain = PLAIN_S[setting]
    own = [seconds / (factor if turn < 2 else 0.9 * factor) for turn, seconds in enumerate(plain)]
    own = plain if method == "plain" else own
    defaults = dict(exactness="invariant", units=200, target_passes=100, acceptance_length=LENGTHS.get(method, 1.5))
    times = dict(draft_s=0.1 if method != "plain" else 0.0, verify_s=0.8, rest_s=0.1, peak_memory=10_000_000)
    counts = dict(equivalent_passes=100, laid_out=0)
    depth = [] if method == "plain" else [0.6, 0.3]
    return Row(
        **{
            **dict(method=method, setting=setting, repeats_s=own, plain_repeats_s=plain, acceptance_by_depth=depth),
            **dict(quality={"distinct_3": 0.8125, "same_as_plain": 1.0}),
            **defaults,
            **times,
            **counts,
            **fields,
        }
    )


@pytest.fixture
def result() -> WholeResult:
    code, prose = PLAIN_S
    lossy = dict(exactness="lossy", quality={"same_as_plain": 0.42})
    rows = [
        *(row("plain", setting, 1) for setting in PLAIN_S),
        row("prompt-lookup", code, 1.6, peak_memory=12_500_000, laid_out=4_000_000),
        row("prompt-lookup", prose, 0.8),
        row("auto", code, 1.5),
        row("daring", code, 2.5, **lossy),
        row("oracle", code, 4.0, mode="oracle", acceptance_length=6.0),
        row("prompt-lookup", code, 0.99, mode="empty", acceptance_length=1.0),
        row("auto", code, 1.2, batch=8, units=1600, quality={"same_as_alone": 1.0}, alone_repeats_s=[11.0, 11.2, 12.0]),
    ]
    peers = {
        f"{code} / generate": Peer(code, [2.1, 2.205, 2.31], 200),
        f"{code} / prompt lookup": Peer(code, [1.5, 1.5, 1.6], 200, "prompt_lookup_num_tokens=10"),
        f"{code} / static": Peer(code, [], 0, "torch.compile needs a compiler"),
        f"{prose} / generate": Peer(prose, [1.0, 1.0, 1.0], 200),
    }
    limits = Limits(
        v_of_n={"1": 1.0, "2": 1.05, "16": 1.5},
        c={"mmspec/text-1m": 0.21},
        F_hw={"1": 0.4},
        F_pipe={f"{code} / auto": 0.93},
        F_tree={f"{code} / auto": 0.81},
        F_total={f"{code} / auto": 0.5},
        measured={"bandwidth_bytes_per_s": 1.2e10},
    )
    versions = {"mmspec": "0.1.0", "torch": "2.13.0"}
    forced = {"code": {"prompt-lookup": 1.31, "auto": 1.42}, "prose": {"auto": 1.11}}
    counts = {"code": 8, "prose": 8}
    more = {"limits": limits, "teacher_forced": forced}
    return WholeResult("text", "mmspec/text-14m", "a CPU, 2 threads", versions, 0, counts, rows, peers, **more)
