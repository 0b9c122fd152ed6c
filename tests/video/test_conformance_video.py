"""The video plugin keeps its promises."""

import pytest

from mmspec.testing import check_component
from tests.support.examples import EXAMPLES


@pytest.mark.parametrize("name", ["video:token-frames", pytest.param("video", marks=pytest.mark.slow)])
def test_no_promise_is_broken(name: str) -> None:
    outcomes = check_component(name, examples=EXAMPLES)
    assert [o for o in outcomes if o.status == "fail"] == []
    tried = {o.component for o in outcomes if o.status == "pass"}
    # Frames by denoising have no distribution that the kit could draw actions from; test_frames_target.py plays them.
    assert {o.component for o in outcomes} - tried <= {"video:frames"}
