"""The mark `thinned`: what the fast tier keeps of a product of settings."""

from itertools import combinations, product

from tests.support.thinned import chosen

AXES = {"form": (1, 2), "name": (3, 4, 5, 6), "rule": (7, 8, 9)}
PRODUCTS = [tuple(zip(AXES, values, strict=True)) for values in product(*AXES.values())]


def test_every_pair_is_kept_in_half_of_the_products() -> None:
    kept = list(chosen(PRODUCTS, 2))
    assert {pair for at in kept for pair in combinations(at, 2)} == {p for at in PRODUCTS for p in combinations(at, 2)}
    assert len(kept) == 12 == 4 * 3, "the two longest axes need so many"


def test_every_value_is_kept_and_used_alike() -> None:
    kept = list(chosen(PRODUCTS, 1))
    assert [dict(at)["name"] for at in kept] == [3, 4, 5, 6] and len({dict(at)["rule"] for at in kept}) == 3
    assert sorted(dict(at)["form"] for at in kept) == [1, 1, 2, 2]


def test_what_is_no_product_is_kept_whole() -> None:
    given = [(("form", 1), ("name", 3)), (("form", 2), ("name", 4))]
    assert list(chosen(given, 2)) == given == list(chosen(given, 1)) and list(chosen(given[:1], 3)) == given[:1]
