"""The promises, by mmspec's kit; and the table, by hand."""

from mmspec_backoff.table import Table

from mmspec.testing import parametrize_checks


@parametrize_checks("backoff")
def test_conformance(check):
    check()


def test_the_longest_ngram_that_was_seen_decides():
    table = Table(order=2)
    table.learn(["a", "b", "c", "x", "b", "d"])
    assert table.follow(["a", "b"], 2) == ["c", "x"]
    assert table.follow(["z", "b"], 1) == ["c"]
    assert table.follow(["new"], 3) == []


def test_it_reads_on():
    table = Table(order=1, least=2)
    table.learn(["a", "b"])
    assert table.follow(["a"], 1) == []
    table.learn(["a", "b", "a", "b"])
    assert table.follow(["a"], 1) == ["b"]
