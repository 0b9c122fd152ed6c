"""Published bugs of speculative decoding, each put back by name: tests must see every one of them."""

from tests.support.mutants import any_order, cascade, commit, continuous, noise, reporting, siblings, window
from tests.support.mutants.mutant import Mutant

MUTANTS: dict[str, Mutant] = {
    mutant.name: mutant
    for family in (noise, reporting, siblings, window, commit, cascade, continuous, any_order)
    for mutant in family.MUTANTS
}

__all__ = ["MUTANTS", "Mutant"]
