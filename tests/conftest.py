"""Settings of every test: one thread a worker, no network, no switches from outside; and distributions made up."""

import gc
import importlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.compiled_rounds import compiled_rounds, parametrized
from tests.support.thinned import mark_slow

# Before anything imports torch, which reads them once.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")
os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
for switch in ("MMSPEC_PLUGINS", "MMSPEC_STRICT", "MMSPEC_TRACE", "MMSPEC_PRODUCTS"):
    os.environ.pop(switch, None)

gc.disable()  # until everything is imported (pytest_collection_finish)

Install = Callable[..., Path]


pytest_generate_tests = parametrized


@pytest.fixture(autouse=True)
def rounds(request: pytest.FixtureRequest) -> Iterator[None]:
    """Rounds as the test makes them; in the second run of a test marked `compiled`, compiled ones."""
    again = getattr(request, "param", None)
    if again is None:
        yield
        return
    with compiled_rounds(again):
        yield


@pytest.fixture(autouse=True)
def _no_cache(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """What this user fetched and tuned is not there, but for tests of real models."""
    if request.node.get_closest_marker("real") is None:
        monkeypatch.setenv("MMSPEC_CACHE", str(tmp_path_factory.getbasetemp() / "nothing-fetched"))


@pytest.fixture(autouse=True, scope="session")
def _no_disk() -> Iterator[None]:
    """Nobody waits for a disk, which can take minutes where it is busy; `core/test_to_disk.py` says what would wait."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests are thinned; those marked gpu are skipped, and say so, where there is no CUDA."""
    mark_slow(items)
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    import torch

    if not torch.cuda.is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


def pytest_collection_finish(session: pytest.Session) -> None:
    """What is imported by now lives to the end, so that no later collection of garbage needs to look through it.

    Where slow tests run, laws are tested with all rows, and all models are examined.
    """
    if "not slow" not in session.config.option.markexpr:
        from tests.support import laws

        laws.CLEAR = 1.0
    elif "mmspec.hosts.self_check" in sys.modules:
        from tests.support.examined import examine_once

        examine_once()
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20)  # traced rounds and models leave much that is no garbage yet
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Each file runs on one worker, which makes once what the file's tests share; `--dist` chooses otherwise."""
    if config.getoption("dist") != "load":
        return None
    from xdist.scheduler import LoadFileScheduling

    config.option.loadscopereorder = False  # it would start files of few but long tests last
    return LoadFileScheduling(config, log)


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """`install(plugin, source)`: a distribution `mmspec-<plugin>` with one module, importable during the test.

    Returns its folder, which a subprocess finds through `PYTHONPATH`.
    """
    site, before = tmp_path / "site", set(sys.modules)
    site.mkdir()
    monkeypatch.syspath_prepend(site)

    def make(plugin: str, source: str, distribution: str | None = None) -> Path:
        distribution = distribution or f"mmspec-{plugin}"
        module = distribution.replace("-", "_") + "_module"
        (site / f"{module}.py").write_text(source)
        info = site / f"{distribution.replace('-', '_')}-1.2.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.2\n")
        (info / "entry_points.txt").write_text(f"[mmspec]\n{plugin} = {module}\n")
        importlib.invalidate_caches()
        return site

    yield make
    for name in set(sys.modules) - before:
        if name.startswith("mmspec_") and name.endswith("_module"):
            del sys.modules[name]


def pytest_make_parametrize_id(val: object) -> str | None:
    """Objects are called by their values, or by their class: an address would differ from worker to worker."""
    if callable(val) or not type(val).__module__.startswith("mmspec"):
        return None
    return type(val).__name__ if " at 0x" in repr(val) else repr(val)
