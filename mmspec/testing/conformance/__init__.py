"""The conformance kit: one named check per promise, and each check says what it measured.

`mmspec check NAME` runs it; `mmspec.testing` has it for tests. A check's docstring says what is promised; its return
value is what was measured; it raises if the promise is broken. One fault fails one check: a run is watched (`watch`), a
faulty draft is recorded under the check that asks about the fault, and the run continues with a repaired draft.
"""
