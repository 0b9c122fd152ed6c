"""The trace of a call: rounds, units, drafts, probabilities and margins, by hand and against the report."""

from html.parser import HTMLParser

import pytest
import torch

from mmspec.core.decoder import Decoder
from mmspec.core.drafters.draft_model import DraftModel
from mmspec.core.drafters.shapes import Branching
from mmspec.core.rules import Rejection
from mmspec.core.trace import Trace
from mmspec.core.warp import Warp
from mmspec.testing.toys.gaussian import GaussianTarget
from mmspec.testing.toys.history import HistoryTarget
from mmspec.testing.toys.markov import MarkovTarget

LARGE = HistoryTarget.random(4, seed=3)


def counting(*sure: float) -> MarkovTarget:
    """Behind unit u, u + 1 of four has the probability `sure[u]`, and the others alike."""
    table = torch.zeros(4, 4, 4)
    for unit, chance in enumerate(sure):
        table[:, unit] = (1 - chance) / 3
        table[:, unit, (unit + 1) % 4] = chance
    return MarkovTarget(table.log())


def test_a_round_by_hand() -> None:
    """The target counts by ones; the small model, too, but behind 2 it goes on with 0 for 3.

    Behind the prompt 3 0 the prefill emits 1. The draft is 2, and behind it 0: the 2 is accepted, the 0 is not.
    """
    small = counting(0.9, 0.9, 0.9, 0.9)
    small.table[:, 2, 0] = 9.0
    decoder, trace = Decoder(counting(0.7, 0.8, 0.6, 0.9), DraftModel(small), k=2), Trace()
    decoder.generate(torch.tensor([[3, 0]]), 3, warp=Warp.sampling(0), on_step=trace.step)
    first, second = trace.rows[0]
    assert (first.first, first.units, first.nodes) == (0, (1,), ())
    assert first.probabilities == pytest.approx([0.7]) and first.margins == pytest.approx([0.6])
    assert (second.first, second.units) == (1, (2, 3))
    assert second.probabilities == pytest.approx([0.8, 0.6]) and second.margins == pytest.approx(
        [0.8 - 0.2 / 3, 0.6 - 0.4 / 3]
    )
    assert [(node.unit, node.parent, node.accepted) for node in second.nodes] == [(2, -1, True)]
    longer = Trace()
    decoder.generate(torch.tensor([[3, 0]]), 5, warp=Warp.sampling(0), on_step=longer.step)
    nodes = longer.rows[0][1].nodes
    assert [(node.unit, node.parent, node.accepted) for node in nodes] == [(2, -1, True), (0, 0, False)]
    assert [node.probability for node in nodes] == pytest.approx([0.8, 0.4 / 3])


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_all_units_of_ragged_rows_in_order(temperature: float) -> None:
    """Trees, rows that end at different times: a trace holds every unit once, and changes none."""
    decoder = Decoder(LARGE, DraftModel(LARGE.near(3), Branching((2, 2))), k=2)
    prompt, how = torch.tensor([[0, 1], [2, 3], [1, 1]]), {"seed": 4, "ends": [3], "warp": Warp.sampling(temperature)}
    trace = Trace()
    output = decoder.generate(prompt, 30, on_step=trace.step, **how)
    again = decoder.generate(prompt, 30, **how)
    for rounds, units, same in zip(trace.rows, output.units, again.units, strict=True):
        assert [unit for round in rounds for unit in round.units] == units.tolist() == same.tolist()
        assert [round.first for round in rounds] == [sum(len(r.units) for r in rounds[:i]) for i in range(len(rounds))]
        for round in rounds:
            accepted = [node for node in round.nodes if node.accepted]
            assert tuple(node.unit for node in accepted) == round.units[: len(accepted)]
            assert len(round.units) - len(accepted) in (0, 1) and all(0 <= p <= 1 for p in round.probabilities)
            assert [p.probability for p in accepted] == pytest.approx(list(round.probabilities[: len(accepted)]))
    assert sum(node.accepted for rounds in trace.rows for r in rounds for node in r.nodes) <= output.report.accepted
    assert trace.to_dict()["rows"][0][0]["units"] == trace.rows[0][0].units


def test_vectors_have_no_trace() -> None:
    with pytest.raises(ValueError, match="units of a vocabulary"):
        Decoder(GaussianTarget.random(4, dim=2, seed=1), rule=Rejection()).generate(1, 3, on_step=Trace().step)


class Reader(HTMLParser):
    """The text outside of tables, the lines of tables and whether they are bold, and tags that stand open."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.text, self.lines, self.open = "", list[tuple[str, bool]](), list[str]()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        if tag == "tr":
            self.lines.append(("", "bold" in (dict(attrs)["style"] or "")))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "tr" in self.open:
            self.lines[-1] = self.lines[-1][0] + data, self.lines[-1][1]
        elif "table" not in self.open:
            self.text += data


def test_a_notebook_shows_the_text_and_every_draft() -> None:
    trace = Trace(["a", "<b>", "&", "\n"].__getitem__)
    decoder = Decoder(LARGE, DraftModel(LARGE.near(3), Branching((2, 2))), k=2)
    output = decoder.generate(torch.tensor([[0, 1]]), 12, seed=4, on_step=trace.step)
    read = Reader(trace._repr_html_())
    assert not read.open
    assert read.text == "".join(map(trace.spell, output.units[0].tolist()))
    nodes = [node for round in trace.rows[0] for node in round.nodes]
    assert sum(bold for _, bold in read.lines) == sum(node.accepted for node in nodes) > 0
    assert len(read.lines) == len(nodes)
    assert all(f"{node.probability:.3f}" in "".join(line for line, _ in read.lines) for node in nodes)
    output.report.trace = trace
    assert trace._repr_html_() in output.report._repr_html_() and "trace" not in output.report.to_dict()
