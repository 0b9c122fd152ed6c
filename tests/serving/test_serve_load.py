"""A small run of `serve_load`: no row is another request's, and nothing is held on to. The large one is by hand."""

from pathlib import Path

import pytest

from tests.serving.serve_load import Load, held
from tests.support.serving import server

pytestmark = pytest.mark.slow


def test_clients_at_once_get_their_own_rows_and_leave_nothing_behind(tmp_path: Path) -> None:
    with server(tmp_path, "mmspec/text-1m", "--method", "prompt-lookup") as (url, process):
        load = Load(url, "mmspec/text-1m")
        first = load.run(8, 10)
        before = held(process)
        second = load.run(8, 12)
        after = held(process)
    assert not first.wrong + second.wrong
    assert second.cancelled
    assert after[1] <= before[1] + 2
    assert after[0] <= before[0] + 80  # MB, of which the allocator's arenas take some 50 until each thread has one
