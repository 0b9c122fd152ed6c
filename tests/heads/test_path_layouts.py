"""Heads that step along paths in every layout: logits of the forward written out, and what becomes of every key."""

import re
from pathlib import Path

import pytest
import torch

from mmspec.core.decoder import Decoder
from mmspec.core.warp import Warp
from mmspec.hosts.target import TransformersTarget
from mmspec.testing.tiny_models import llama
from mmspec_text.drafters.heads.pathwise.drafter import PathOptions
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


@pytest.mark.parametrize("name", ["medusa", "hydra++", "arctic-lstm"])
def test_a_trial_is_reported_once(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guesses are compared with the target's own; what guesses nothing is said."""
    said: list[str] = []
    monkeypatch.setattr("mmspec_text.drafters.heads.trial.warn", said.append)
    layout = LAYOUTS[name]
    drafter = layout.drafter(PathOptions(model=str(layout.save(tmp_path)), form="chain"))
    ours = Decoder(TransformersTarget(llama()), drafter, k=2)
    prompt = torch.randint(7, (1, 40), generator=torch.Generator().manual_seed(2))
    for _ in range(2):
        ours.generate(prompt, 4, warp=Warp.sampling(temperature=0))
    trial = drafter.loaded.trial
    assert trial is not None and trial.units == 38
    with torch.no_grad():
        out = llama()(input_ids=prompt, output_hidden_states=True, use_cache=False)
    given, units = layout.given(llama()), prompt[0].tolist()
    right = 0
    for t in range(38):
        guess = layout.forward(given, out.hidden_states[-1][0, : t + 1], units[1 : t + 2], [])[0].argmax()
        right += int(guess == out.logits[0, t + 1].argmax())
    assert abs(trial.right["boundary"] - right / 38) < 1e-6
    assert len(said) == (right / 38 < 0.1) and "guesses of 38 tokens" in str(drafter.loaded)
    monkeypatch.setattr("mmspec_text.drafters.heads.trial.LOW", 1.1)
    again = layout.drafter(PathOptions(model=str(tmp_path), form="chain"))
    Decoder(TransformersTarget(llama()), again, k=2).generate(prompt, 4)
    assert "may be a head of another target" in said[-1]
