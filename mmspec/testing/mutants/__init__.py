"""The published bugs, each put back by name: a suite that does not see them proves nothing."""

from mmspec.testing.mutants import cascade, commit, noise, reporting, siblings, window
from mmspec.testing.mutants.mutant import Mutant

MUTANTS: dict[str, Mutant] = {
    mutant.name: mutant for family in (noise, reporting, siblings, window, commit, cascade) for mutant in family.MUTANTS
}

__all__ = ["MUTANTS", "Mutant"]
