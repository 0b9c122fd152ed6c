"""Windows whose drafts are made in captured rounds, read one round late; here a CPU is read late, too."""

from itertools import zip_longest
from typing import Any

import pytest
import torch
from transformers import StoppingCriteria

import mmspec
from mmspec.core.compile import rounds
from mmspec.core.decoder import Decoder
from mmspec.core.drafters.initialisations import LeftUnit, RandomUnit
from mmspec.core.drafters.jacobi import Jacobi, WindowInside
from mmspec.core.noise import OffsetSource, Round
from mmspec.core.philox import PhiloxSource
from mmspec.core.rules import Match, Rejection
from mmspec.core.warp import Warp
from mmspec.hosts.target import TransformersTarget
from mmspec_image.drafters.jacobi import ImageJacobi, JacobiOptions
from mmspec_image.rules.grouped import Grouped
from mmspec_image.rules.relaxed import Relaxed
from mmspec_text.drafters.jacobi_text import JacobiText, JacobiTextOptions
from tests.captured.conftest import forget, lockstep, rounds_of
from tests.captured.test_late import one_layer, ragged
from tests.captured.test_rules import both
from tests.support.examples.image import llamagen

ANEW = {"redraw": "independent"}
WINDOWS: dict[str, tuple[Any, dict[str, Any], int | None]] = {
    "gs-sjd": (Match, {}, None),
    "gs-sjd, wide": (Match, {"init": "left"}, 9),
    "gs-sjd, random": (Match, {"init": "random"}, None),
    "gs-sjd, anew": (Match, ANEW, None),
    "mc-sjd": (Rejection, {}, None),
    "sjd": (Rejection, ANEW, None),
    "sjd, wide": (Rejection, {"init": "left", **ANEW}, 8),
    "gsd": (Grouped, {}, None),
    "lantern": (Relaxed, {}, None),
}
"""Rule, options of the window, and a width."""
FAST = ("gs-sjd, wide", "sjd")


def pictures(name: str) -> tuple[Decoder, Decoder]:
    """The eager decoder of a window over the tiny LlamaGen, and the captured one."""
    rule, options, shape = WINDOWS[name]
    target: Any = llamagen().target

    def decoder() -> Decoder:
        how: Any = {"shape": shape or "one", "compile": True}
        return Decoder(target, ImageJacobi(JacobiOptions(**options)), rule(), k=4, **how)

    return both(target.model, decoder)


def played(decoder: Decoder) -> list[Any]:
    """The drafts inside of a decoder's captured rounds."""
    return [round.plan.drafts for round in rounds_of(decoder)]


def assert_same(found: Any, expected: Any) -> None:
    assert all(torch.equal(a, b) for a, b in zip(found.units, expected.units, strict=True))
    mine, other = found.report, expected.report
    assert mine.compiled and not other.compiled
    for name in ("rounds", "row_rounds", "emitted", "drafted", "width"):
        assert getattr(mine, name) == getattr(other, name), name
    depths = zip_longest(mine.accepted_by_depth, other.accepted_by_depth, fillvalue=0)
    assert all(a == b for a, b in depths)


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in FAST else pytest.mark.slow) for n in WINDOWS])
def test_a_window_is_the_eager_loops(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In lock-step, where somebody watches, and late; each call begins with the buffers of another one."""
    monkeypatch.setattr(rounds, "READ_AT_ONCE", ())
    eager, captured = pictures(name)
    prompt = llamagen().prompt
    warps = [Warp.sampling(0.9, guidance=2.0), *[Warp.sampling(0, guidance=2.0)] * (WINDOWS[name][0] is Match)]
    for warp in warps:
        assert lockstep(eager, captured, prompt((0, 1)), 20, seed=3, warp=warp) > 3
        for seed in (4, 5):
            call: dict[str, Any] = {"seed": seed, "warp": warp}
            assert_same(captured.generate(prompt((2, 3)), 13, **call), eager.generate(prompt((2, 3)), 13, **call))
    assert len(played(captured)) == len(warps) and all(isinstance(drafts, WindowInside) for drafts in played(captured))


@pytest.mark.parametrize("init", ["lookup", pytest.param("last", marks=pytest.mark.slow)])
def test_windows_of_texts(init: Any) -> None:
    target = TransformersTarget(one_layer())
    eager, captured = (
        Decoder(target, JacobiText(JacobiTextOptions(init=init)), k=4, shape="one", compile=c) for c in (None, True)
    )
    lockstep(eager, captured, ragged(), 24, seed=3, warp=Warp.sampling(0.9), ends=[7, 11])
    assert [type(drafts) for drafts in played(captured)] == [WindowInside]


def test_what_a_round_cannot_fill_is_drafted_outside() -> None:
    """A filling that does not say whether it can be traced; and any filling in a call whose noise has no key."""
    target: Any = llamagen().target
    prompt, nowhere = llamagen().prompt((0, 1)), torch.zeros(2, dtype=torch.int64)
    keyless = OffsetSource(Round(PhiloxSource.seeded(1, 2), nowhere, [0, 0]))

    class Silent:
        reach, fill = 0, LeftUnit().fill

    for drafter, call in ((Jacobi(Silent()), {}), (ImageJacobi(), {"source": keyless})):
        forget(target.model)
        decoder = Decoder(target, drafter, k=4, shape="one", compile=True)
        assert decoder.generate(prompt, 8, **call).report.compiled and played(decoder) == [None]


def test_drafts_end_where_a_criterion_draws_from_the_generator() -> None:
    """A round that drafts by itself is left, too."""
    model = one_layer()

    class Drawing(StoppingCriteria):
        """Draws, and stops nobody."""

        def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
            torch.rand(1)
            return torch.zeros(len(input_ids), dtype=torch.bool)

    def generated() -> tuple[Any, Any]:
        torch.manual_seed(5)
        call: dict[str, Any] = {"do_sample": True, "max_new_tokens": 12, "stopping_criteria": [Drawing()]}
        return model.generate(**ragged(), **call), torch.get_rng_state()

    stock = generated()
    with mmspec.enable(model, "jacobi-text", k=4, shape="one", compile=True) as spec:
        with pytest.warns(UserWarning, match="this call goes on without drafts"):
            found = generated()
        assert all(torch.equal(a, b) for a, b in zip(found, stock, strict=True))
        assert spec.report is not None and spec.report.compiled and spec.report.drafted <= 12


@pytest.mark.slow
def test_windows_of_two_drafters_share_a_round() -> None:
    target: Any = llamagen().target
    forget(target.model)
    for vocab in (6, 6, 5):
        decoder = Decoder(target, Jacobi(RandomUnit(vocab)), k=4, shape="one", compile=True)
        decoder.generate(llamagen().prompt((0, 1)), 8, warp=Warp.sampling(0.9, guidance=2.0))
    assert len(rounds_of(decoder)) == 2, "one for each vocabulary"
