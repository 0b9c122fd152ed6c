"""Pictures of the Chameleon family, equal to a loop over transformers' own body, head and processors."""

from typing import Any

import pytest
import torch
from transformers import (
    ChameleonForConditionalGeneration,
    DynamicCache,
    TopKLogitsWarper,
)
from transformers.generation.logits_process import PrefixConstrainedLogitsProcessor

import mmspec
from mmspec_image.constraint import GridConstraint, chameleon_grid
from tests.support.examples.written import BREAK, EOSS, FIRST_CODE, FIRST_SIZE, LUMINA_END, tiny_chameleon

SIZE, SCALE, TOP_K = (4, 6), 3.0, 12
HEADERS = {"chameleon": [BREAK], "lumina": [BREAK, FIRST_SIZE + 1, FIRST_SIZE + 2]}
METHODS: dict[str, dict[str, Any]] = {
    "plain": {},
    "gs-sjd": {"k": 8},
    "prompt-lookup": {},
    "token-recycling": {},
    "draft-model": {},
}


def stock() -> ChameleonForConditionalGeneration:
    """transformers' own class with the weights of the tiny model."""
    ours = tiny_chameleon()
    made = ChameleonForConditionalGeneration(ours.config).eval()
    made.load_state_dict(ours.state_dict())
    return made


def prompts(form: str, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and mask, padded on the left; the second row is shorter."""
    ids = torch.randint(3, 19, (rows, 9), generator=torch.Generator().manual_seed(rows))
    ids[:, -len(HEADERS[form]) :] = torch.tensor(HEADERS[form])
    mask = torch.ones_like(ids)
    mask[1:2, :3] = 0
    return ids.masked_fill(mask == 0, 0), mask


class Half:
    """One half of the guidance, or all there is: a prompt and its cache, read by the unmodified body and head."""

    def __init__(self, model: Any, ids: torch.Tensor, mask: torch.Tensor) -> None:
        self.model, self.ids, self.mask, self.cache = model, ids, mask, DynamicCache(config=model.config)

    def scores(self) -> torch.Tensor:
        """Of the next unit, `[row, vocab]`; no code is forbidden."""
        position = (self.mask.cumsum(1) - 1).clamp(min=0)[:, -self.ids.shape[1] :]
        how = {"attention_mask": self.mask, "position_ids": position, "past_key_values": self.cache}
        hidden = self.model.model(input_ids=self.ids, use_cache=True, **how).last_hidden_state
        return self.model.lm_head(hidden[:, -1]).float()

    def read(self, units: torch.Tensor) -> None:
        self.ids, self.mask = units, torch.cat([self.mask, torch.ones_like(units)], 1)


@torch.no_grad()
def looped(form: str, rows: int, guided: bool, sample: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids of a plain loop, one pass a unit, and the state in which it leaves torch's generator."""
    model, (ids, mask) = stock(), prompts(form, rows)
    grid = chameleon_grid(model, ids, *SIZE)
    allowed, kept = PrefixConstrainedLogitsProcessor(grid, 1), TopKLogitsWarper(TOP_K)
    halves = [Half(model, ids, mask), Half(model, ids[:, 4:], torch.ones_like(ids[:, 4:]))]
    torch.manual_seed(3)
    for _ in range(grid.length):
        given = halves[0].scores()
        if guided:
            given, null = given.log_softmax(-1), halves[1].scores().log_softmax(-1)
            given = null + SCALE * (given - null)
        scores = allowed(ids, given)
        drawn = torch.multinomial(kept(ids, scores).softmax(-1), 1) if sample else scores.argmax(-1, keepdim=True)
        ids = torch.cat([ids, drawn], 1)
        for half in halves:
            half.read(drawn)
    return ids, torch.get_rng_state()


def generated(form: str, rows: int, guided: bool, sample: bool, method: str | None) -> tuple[Any, Any]:
    """The same by `generate` of the model of pictures; None: without mmspec."""
    model, (ids, mask) = tiny_chameleon(), prompts(form, rows)
    grid = chameleon_grid(model, ids, *SIZE)
    how: dict[str, Any] = {"max_new_tokens": grid.length, "do_sample": sample} | ({"top_k": TOP_K} if sample else {})
    if guided:
        how |= {"guidance_scale": SCALE, "negative_prompt_ids": ids[:, 4:]}
    given = {"input_ids": ids, "attention_mask": mask, "prefix_allowed_tokens_fn": grid, **how}
    torch.manual_seed(3)
    if method is None:
        return model.generate(**given), torch.get_rng_state()
    options = {"model": model} if method == "draft-model" else METHODS[method]
    with mmspec.enable(model, method, **options):
        return model.generate(**given), torch.get_rng_state()


def cases() -> list[Any]:
    made = []
    for form in HEADERS:
        for method in (None, *METHODS):
            for rows in (1, 3):
                for guided in (False, True):
                    for sample in (True, False):
                        quick = (form, method, rows, guided, sample) == ("lumina", "gs-sjd", 3, True, True)
                        marks = () if quick else (pytest.mark.slow,)
                        made.append(pytest.param(form, method, rows, guided, sample, marks=marks))
    return made


@pytest.mark.parametrize(("form", "method", "rows", "guided", "sample"), cases())
def test_a_plain_loop_over_unmodified_parts_writes_the_same(
    form: str, method: str | None, rows: int, guided: bool, sample: bool
) -> None:
    expected, state = looped(form, rows, guided, sample)
    found, after = generated(form, rows, guided, sample, method)
    assert torch.equal(found, expected)
    assert torch.equal(after, state)


def test_scores_of_codes_are_those_of_the_head() -> None:
    ids, mask = prompts("chameleon", 3)
    ours, theirs = tiny_chameleon(), stock()
    with torch.no_grad():
        hidden = theirs.model(input_ids=ids, attention_mask=mask).last_hidden_state
        torch.testing.assert_close(ours(input_ids=ids, attention_mask=mask).logits, theirs.lm_head(hidden))


@pytest.mark.parametrize("method", [pytest.param("token-recycling", marks=pytest.mark.slow), "gs-sjd"])
def test_an_early_end_code_ends_a_row_as_in_stock(method: str) -> None:
    """A code that also ends texts: rows end at different lengths, within the picture."""
    model, (ids, mask) = tiny_chameleon(), prompts("lumina", 3)
    grid = chameleon_grid(model, ids, *SIZE)
    ends = [EOSS, FIRST_CODE, FIRST_CODE + 5]
    how: dict[str, Any] = dict(max_new_tokens=grid.length, do_sample=True, eos_token_id=ends, pad_token_id=0)
    given = {"input_ids": ids, "attention_mask": mask, "prefix_allowed_tokens_fn": grid, **how}
    lengths = set()
    for seed in range(3):
        torch.manual_seed(seed)
        expected, state = model.generate(**given), torch.get_rng_state()
        with mmspec.enable(model, method):
            torch.manual_seed(seed)
            found = model.generate(**given)
        assert torch.equal(found, expected) and torch.equal(torch.get_rng_state(), state)
        lengths |= set((found != 0).sum(1).tolist())
    assert len(lengths) > 2


def test_forced_ids_need_not_be_among_the_codes() -> None:
    """A cell has codes alone; a row end stands where it must though no cell may have it."""
    model, (ids, mask) = tiny_chameleon(), prompts("lumina", 1)
    grid = chameleon_grid(model, ids, *SIZE)
    assert LUMINA_END not in grid.allowed.tolist() and EOSS not in grid.allowed.tolist()
    one = GridConstraint(grid.grid, [FIRST_CODE + 3], ids.shape[1])
    with mmspec.enable(model, "gs-sjd", k=8):
        found = model.generate(
            input_ids=ids, attention_mask=mask, prefix_allowed_tokens_fn=one, max_new_tokens=one.length, do_sample=True
        )
    line = [FIRST_CODE + 3] * SIZE[1] + [LUMINA_END]
    assert found[0, ids.shape[1] :].tolist() == [*line * SIZE[0], EOSS]
