"""Where stock sampling notices one step late that all rows have ended, torch's generator is left where it leaves it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers.generation import utils

from mmspec.compare.equality import assert_same
from mmspec.core.noise import default_generator
from mmspec.core.torch_noise import TorchSource


class Event:
    """An event of a device on which everything has happened."""

    def __init__(self, **options: Any) -> None: ...

    def record(self) -> None: ...

    def synchronize(self) -> None: ...


@pytest.mark.parametrize("method", ["plain", "good"])
def test_one_block_more_is_drawn_then(
    target: Any,
    good: Any,
    prompts: Callable,
    theirs: Callable,
    ours: Callable,
    method: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rows end by themselves, at the limit, and one step before it."""
    check = getattr(utils, "DeferredStopCheck", None)
    if check is None:
        pytest.skip("this transformers never stops late")
    usual = theirs(target, prompts(2), 0, do_sample=True, max_new_tokens=12)
    monkeypatch.setattr(check, "is_supported", staticmethod(lambda *args, **kwargs: True))
    monkeypatch.setattr(torch, "Event", Event)
    last = usual.ids[:, -12:]
    ends = {"neither": 130, "all of them": list(range(131)), "one before": sorted({*last[:, 10].tolist()})}
    late = 0
    for end in ends.values():
        call = dict(do_sample=True, max_new_tokens=12, eos_token_id=end)
        stock = theirs(target, prompts(2), 0, **call)
        spec = {"method": "draft-model", "drafter": good} if method == "good" else {"method": method}
        mine = ours(target, prompts(2), 0, spec, **call)
        assert_same(mine.ids, stock, mine.state)
        late += not torch.equal(stock.state, usual.state)
    assert late, "stock stopped in time"


def test_the_generator_of_each_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.mps, "_get_default_mps_generator", lambda: "Apple's")
    assert default_generator(torch.device("mps")) == "Apple's"  # type: ignore[comparison-overlap]
    assert default_generator(torch.device("cpu")) is torch.default_generator


def test_blocks_are_not_drawn_inside_a_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    """The state of a CUDA generator cannot be read there; on the CPU there is no capture."""
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    source = TorchSource(torch.Generator(), 1, torch.device("cpu"))
    source.hold([0], 1, 3)
    source._device = torch.device("cuda")
    with pytest.raises(RuntimeError, match=r"while a CUDA graph is captured.*philox"):
        source.hold([0], 1, 3)
