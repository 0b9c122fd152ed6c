"""The video plugin keeps its promises."""

from mmspec.testing import check_component


def test_no_promise_is_broken():
    outcomes = check_component("video")
    assert [o for o in outcomes if o.status == "fail"] == []
    tried = {o.component for o in outcomes if o.status == "pass"}
    # Frames by denoising have no distribution that the kit could draw actions from; test_frames_target.py plays them.
    assert {o.component for o in outcomes} - tried <= {"video:frames"}
