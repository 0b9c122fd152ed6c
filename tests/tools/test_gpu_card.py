"""The tables of GPU figures are what the lines of leases say."""

import pytest

from tools.gpu.card import MARKED, PAGES, rendered


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_are_as_rendered(page) -> None:
    text = page.read_text(encoding="utf-8")
    assert MARKED.search(text) and rendered(text) == text
