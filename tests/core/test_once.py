"""What functions of hashable arguments return, and who keeps it."""

import gc
import weakref

from mmspec.core.once import keeping, known


def test_results_outlive_the_latest_ones_where_someone_keeps_them() -> None:
    @known
    def made(number: int) -> frozenset[int]:
        return frozenset([number])

    with keeping() as results:
        first = made(0)
        with keeping() as inner:
            assert made(0) is first and made(1) is inner[1]
    assert results == [first, first, inner[1]]
    made(2)
    assert len(results) == 3
    kept, dropped = weakref.ref(first), weakref.ref(made(2))
    del first
    for number in range(3, 300):
        made(number)
    gc.collect()
    assert kept() is results[0] and dropped() is None
