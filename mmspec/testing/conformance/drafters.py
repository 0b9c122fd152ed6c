"""The promises of a drafter: drafts that can be verified, whatever happens; it changes nothing that is not its own."""

from mmspec.testing.conformance.play import Alternating, K, Played, Player, plain, refuse_differing, unlike
from mmspec.testing.conformance.promise import Broken, Untried, offers, promise
from mmspec.testing.conformance.subject import Subject, Trial, remembered
from mmspec.testing.conformance.watch import SHARED, Log

Run = tuple[Trial, Played]
ALONE = 4
"""Rows of a batch that are decoded again, alone."""


@remembered
def runs(subject: Subject) -> list[Run]:
    """Every trial, decoded with drafts of one length."""
    return [(trial, Player(trial, trial.rule()).play(trial.batches)) for trial in subject.trials]


@remembered
def ragged(subject: Subject) -> list[tuple[Trial, Played, int | None]]:
    """Every trial, decoded with drafts of every length, empty ones too: without an end of sequence, then with one.

    The third value is the unit that ends a row.
    """
    ways = [(trial, None) for trial in subject.trials] + [(trial, _end(trial)) for trial in subject.trials]
    return [
        (trial, Player(trial, trial.rule(), Alternating()).play(trial.batches, ends=end), end) for trial, end in ways
    ]


@remembered
def log(subject: Subject) -> Log:
    """The record of all runs."""
    found = Log()
    for trial, played in runs(subject) + [(trial, played) for trial, played, _ in ragged(subject)]:
        found.count += played.log.count
        found.count["drafts"] += played.drafts
        for quantity, value in played.log.most.items():
            found.reach(quantity, value)
        for check, wrong in played.log.wrong.items():
            found.wrong[check] += [f"on {trial.name}: {each}" for each in wrong]
    return found


def _end(trial: Trial) -> int | None:
    """The unit that ends rows of plain decoding at the most different places."""
    if not trial.bench.discrete:
        return None
    rows = [row.tolist() for row in plain(trial.bench, trial.batches)]
    units = sorted({unit for row in rows for unit in row})
    return max(units, key=lambda unit: len({(*row, unit).index(unit) for row in rows}))


@promise("drafter")
def never_raises(subject: Subject) -> str:
    """start, propose and observe never raise: without an idea, propose returns an empty draft."""
    return log(subject).unbroken("never-raises", f"0 faults in {log(subject).count['drafts']} drafts")


@promise("drafter")
def drafts_have_their_shape(subject: Subject) -> str:
    """Units are [batch, node, *unit], of the root's type and device; valid, score and distribution fit them."""
    return log(subject).unbroken("drafts-have-their-shape", f"{log(subject).count['drafts']} drafts")


@promise("drafter")
def units_in_vocabulary(subject: Subject) -> str:
    """Every unit is an id that the target has, padding too."""
    return log(subject).unbroken("units-in-vocabulary", f"{log(subject).count['units']:,} units")


@promise("drafter")
def fits_the_budget(subject: Subject) -> str:
    """A draft of budget k has at most width(k) nodes, and none deeper than k."""
    deepest, widest = log(subject).most["depth"], log(subject).most["nodes"]
    return log(subject).unbroken("fits-the-budget", f"at most {widest:.0f} nodes, depth {deepest:.0f} of k = {K}")


@promise("drafter")
def parents_come_first(subject: Subject) -> str:
    """The nodes of a draft are a forest, parents before their children."""
    number = f"{log(subject).count['drafts']} drafts of up to {log(subject).most['nodes']:.0f} nodes"
    return log(subject).unbroken("parents-come-first", number)


@promise("drafter", when=offers("tree"))
def siblings_differ(subject: Subject) -> str:
    """Siblings are different units, unless they were drawn with replacement and the draft's distribution says so."""
    number = f"{log(subject).count['twins']} of {log(subject).count['live']:,} nodes repeat a sibling"
    return log(subject).unbroken("siblings-differ", number)


@promise("drafter")
def inputs_stay(subject: Subject) -> str:
    """The prompt, the state, the step that it is shown and the target's cache are the same afterwards."""
    return log(subject).unbroken("inputs-stay", f"0 changes in {log(subject).count['drafts']} rounds")


@promise("drafter")
def same_seed_same_draft(subject: Subject) -> str:
    """Two new drafters, given the same seed, draft the same."""
    total = 0
    log(subject).unbroken("same-seed-same-draft", "")
    for trial, played in runs(subject):
        again = Player(trial, trial.rule()).play(trial.batches)
        total += _refuse_unlike(unlike(played, again), f"on {trial.name}, two runs draft differently")
    return f"0 of {total:,} drafts differ"


@promise("drafter")
def second_call_is_fresh(subject: Subject) -> str:
    """A call after others is what it was at first: its output, and its drafts unless it learns (Example.learns)."""
    rows, total = 0, 0
    for trial in subject.trials:
        player, one = Player(trial, trial.rule()), [[0]]
        first, _, second = player.play(one), player.play(trial.batches), player.play(one)
        rows += refuse_differing(first.units, second.units, f"on {trial.name}, the second output differs")
        if not trial.example.learns:
            reason = f"on {trial.name}, the second call drafts differently{_shared(subject)}"
            total += _refuse_unlike(unlike(first, second), reason)
    return _nothing_differs(rows, total)


@promise("drafter")
def rows_are_independent(subject: Subject) -> str:
    """A row of a batch is what it is alone: its output, and its drafts unless it says that it learns."""
    rows, total = 0, 0
    for trial, played in runs(subject):
        if len(trial.batches) > 1:
            continue
        alone = [Player(trial, trial.rule()).play([[row]]) for row in trial.batches[0][:ALONE]]  # new: they may learn
        units = [row for one in alone for row in one.units]
        rows += refuse_differing(played.units[:ALONE], units, f"on {trial.name}, rows differ")
        if not trial.example.learns:
            wrong, compared = (sum(counts) for counts in zip(*(unlike(played, one) for one in alone), strict=True))
            reason = f"on {trial.name}, a row's drafts depend on its batch{_shared(subject)}"
            total += _refuse_unlike((wrong, compared), reason)
    if not rows:
        raise Untried("it takes one row at a time (Example.rows)")
    return _nothing_differs(rows, total)


def _shared(subject: Subject) -> str:
    """The end of a reason, if the drafter draws from a generator that it shares."""
    return f": it {SHARED}" if log(subject).wrong["same-seed-same-draft"] else ""


def _refuse_unlike(counts: tuple[int, int], reason: str) -> int:
    """The number of drafts that were compared."""
    wrong, compared = counts
    if wrong:
        raise Broken(reason, f"{wrong} of {compared} drafts differ")
    return compared


def _nothing_differs(rows: int, drafts: int) -> str:
    return f"0 of {rows} rows, 0 of {drafts:,} drafts differ" if drafts else f"0 of {rows} rows differ; it learns"


@promise("drafter")
def match_equals_plain(subject: Subject) -> str:
    """Under `match`, with the same seed, the output is the plain one, sampled and greedy."""
    rows, lengths = 0, []
    for trial, played in runs(subject):
        if not trial.matched:
            continue
        greedy = Player(trial, trial.rule()).play(trial.batches, warp=trial.bench.greedy)
        for sample, run in ((True, played), (False, greedy)):
            expected = plain(trial.bench, trial.batches, sample=sample)
            rows += refuse_differing(run.units, expected, f"on {trial.name}, rows are not the plain ones")
            lengths.append(run.length)
    if not rows:
        raise Untried("`match` does not take it")
    return f"0 of {rows} rows differ, acceptance length {min(lengths):.2f} to {max(lengths):.2f}"


@promise("drafter")
def ragged_rounds_do_no_harm(subject: Subject) -> str:
    """With drafts of every length, empty ones too, and rows that end early, output under `match` is the plain one."""
    rows, lengths = 0, set()
    for trial, played, end in ragged(subject):
        if trial.matched:
            expected = plain(trial.bench, trial.batches, ends=end)
            rows += refuse_differing(played.units, expected, f"on {trial.name}, rows are not the plain ones")
            lengths |= {len(row) for row in played.units}
    if not rows:
        raise Untried("`match` does not take it")
    return f"0 of {rows} rows of {min(lengths)} to {max(lengths)} units differ"
