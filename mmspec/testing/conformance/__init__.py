"""The conformance kit: one named check per promise, and each says what it measured.

`mmspec check NAME` runs it; `mmspec.testing` has it for tests. What a check promises is its docstring, what it measured
is its return value, and it fails by raising. Checks never share a failure: a run is watched (`watch`), what is wrong
with a draft is written down under the check that asks about it, and the run goes on with a mended draft.
"""
