"""A hub name without a network: one attempt, the cache first, a whole sentence; on a transport of the test's own."""

import threading
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants
from huggingface_hub.errors import OfflineModeIsEnabled, RepositoryNotFoundError

from mmspec.cli import boundary
from mmspec.cli.app import build
from mmspec.hosts import outline as hub


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """An empty cache, and the addresses that are asked for; each attempt fails, as without a network."""
    seen: list[str] = []

    def attempt(url: str, **how: Any) -> None:
        seen.append(url)
        raise ConnectionError("Name or service not known")

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(hub, "get_hf_file_metadata", attempt)
    return seen


def test_methods_for_a_hub_name_asks_once_and_says_so_in_a_sentence(
    asked: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert boundary.run(lambda: build()(["methods", "--for", "org/name"], standalone_mode=False)) == 2
    (url,) = asked
    assert url.endswith("/org/name/resolve/main/config.json")
    said = capsys.readouterr().err
    assert said.startswith("mmspec: no config of a model at 'org/name': neither a folder with a config.json")
    assert "nor to be had from the hub (it cannot be reached: Name or service not known). Shipped: mmspec/emoji" in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("raised", "says"),
    [
        (OfflineModeIsEnabled("no"), "HF_HUB_OFFLINE is set, and it was never loaded here"),
        (TimeoutError(), "it does not answer within 1.5 s"),
        (RuntimeError("a library of its own"), "it cannot be reached: a library of its own"),
    ],
)
def test_each_reason_has_its_words(
    asked: list[str], raised: Exception, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def attempt(url: str, **how: Any) -> None:
        raise raised

    monkeypatch.setattr(hub, "get_hf_file_metadata", attempt)
    with pytest.raises(ValueError, match=says):
        hub.refuse_unreachable("org/name")


def test_what_the_hub_itself_refuses_is_told_in_its_first_line(
    asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from unittest.mock import Mock

    def attempt(url: str, **how: Any) -> None:
        raise RepositoryNotFoundError("404 Client Error.\n\nRepository Not Found", response=Mock(headers={}))

    monkeypatch.setattr(hub, "get_hf_file_metadata", attempt)
    with pytest.raises(ValueError, match=r"^it says: 404 Client Error\.$"):
        hub.refuse_unreachable("org/name")


def test_a_lookup_that_never_ends_is_left_behind(asked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()
    monkeypatch.setattr(hub, "SECONDS", 0.01)
    monkeypatch.setattr(hub, "get_hf_file_metadata", lambda url, **how: over.wait())
    with pytest.raises(ValueError, match="does not answer"):
        hub.refuse_unreachable("org/name")
    over.set()


def test_folders_and_what_is_in_the_cache_are_not_asked_for(
    asked: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.refuse_unreachable(str(tmp_path))
    monkeypatch.setattr(hub, "try_to_load_from_cache", lambda name, file: str(tmp_path / file))
    hub.refuse_unreachable("org/name")
    assert asked == []


def test_what_is_no_name_of_the_hub_is_not_asked_for(asked: list[str]) -> None:
    with pytest.raises(ValueError, match="organisation/name"):
        hub.refuse_unreachable("a/b/c")
    assert asked == []
