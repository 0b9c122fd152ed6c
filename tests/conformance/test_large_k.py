"""`k` says how far drafts may go at most: however large, nothing is made for more than a call can take."""

import pytest

from mmspec.core.decoder import Decoder
from mmspec.registry import installed
from mmspec.testing.conformance.subject import Subject
from tests.support.examples import EXAMPLES

HUGE = 10**6
NEW = 6
METHODS = [m.qualified for m in installed().components("method")]


@pytest.mark.parametrize("method", METHODS)
def test_every_method_takes_a_million(method: str) -> None:
    subject = Subject(installed().get("method", method), installed(), given=EXAMPLES)
    for trial in subject.trials:
        decoder = Decoder(trial.bench.target, trial.drafter(), subject.rule(trial.example), k=HUGE)
        output = decoder.generate(trial.bench.prompt([0]), NEW, seed=0, warp=trial.bench.warp)
        assert [len(row) for row in output.units] == [NEW] and not output.report.faults
