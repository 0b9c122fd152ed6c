"""Heads that step along paths in every layout: logits of the forward written out, and what becomes of every key."""

import re
from pathlib import Path

import pytest
import torch

from mmspec.testing.tiny_models import llama
from mmspec_text.drafters.heads.pathwise.head import PrefixHead
from tests.support.cached_heads import cached_states
from tests.support.path_heads import KINDS, LAYOUTS
from tests.support.path_heads.layout import HIDDEN, VOCAB

PUBLISHED = ("medusa", "hydra", "hydra++", "mlp-speculator", "mlp-speculator-tied", "arctic-lstm")
"""Layouts whose logits `test_published.py` compares with those of their authors' classes."""


@pytest.mark.parametrize("name", [name for name in LAYOUTS if name not in PUBLISHED])
def test_logits_are_those_of_the_forward_written_out(name: str, tmp_path: Path) -> None:
    """Behind every unit of a text, and along a path behind the last one."""
    layout, model = LAYOUTS[name], llama()
    head = layout.read(str(layout.save(tmp_path))).network(VOCAB)
    head.join(model.model.embed_tokens, model.lm_head, model.device, model.dtype)
    g = torch.Generator().manual_seed(3)
    features, units = torch.randn(2, 6, HIDDEN, generator=g), torch.randint(VOCAB, (2, 6), generator=g)
    path = torch.randint(VOCAB, (2, head.units - 1), generator=g)
    with torch.no_grad():
        states = cached_states(head, features, units) if isinstance(head, PrefixHead) else head.rooted(features, units)
        behind = head.logits(states.flatten(0, 1)[:, None]).unflatten(0, (2, 6))[:, :, 0]
        state = states[:, -1:]
        along = [head.logits(state)]
        for depth in range(1, head.units):
            state = head.followed(state, path[:, depth - 1 : depth], depth)
            along.append(head.logits(state, depth))
    given = layout.given(model)
    for row in range(2):
        known = units[row].tolist()
        for i in range(6):
            expected = layout.forward(given, features[row, : i + 1], known[: i + 1], [])[0]
            assert torch.allclose(behind[row, i].double(), expected, atol=1e-4)
        expected = torch.stack(layout.forward(given, features[row], known, path[row].tolist()))
        assert torch.allclose(torch.cat(along, 1)[row].double(), expected, atol=1e-4)


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_key_is_taken_or_ignored(name: str, tmp_path: Path) -> None:
    layout = LAYOUTS[name]
    stored = layout.read(str(layout.save(tmp_path)))
    assert set(stored.taken) == {layout.renamed(key) for key in layout.weights()}
    assert set(stored.ignored) == {*layout.extra, *layout.copies}


@pytest.mark.parametrize("name", [pytest.param(x, marks=[] if x in KINDS else [pytest.mark.slow]) for x in LAYOUTS])
def test_every_missing_key_is_named(name: str, tmp_path: Path) -> None:
    """Leave out one key after the other: the error has its name, in the layout's words or in ours."""
    layout = LAYOUTS[name]
    for number, key in enumerate(layout.weights().keys() - {*layout.optional}):
        folder = layout.save(tmp_path / str(number), **{key: None})
        short = re.sub(r"^medusa_heads?\.", "", key)
        with pytest.raises(ValueError, match=f"{re.escape(short)}|{re.escape(layout.renamed(key))}"):
            layout.read(str(folder)).network(VOCAB)
