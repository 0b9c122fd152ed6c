"""The image plugin keeps its promises."""

import pytest

from mmspec.testing import check_component
from tests.support.examples import EXAMPLES


@pytest.mark.slow
def test_no_promise_is_broken():
    outcomes = check_component("image", examples=EXAMPLES)
    assert [o for o in outcomes if o.status == "fail"] == []
    assert {o.component for o in outcomes if o.status == "pass"} == {o.component for o in outcomes}
