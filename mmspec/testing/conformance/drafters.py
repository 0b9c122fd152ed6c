"""What a drafter promises: drafts that can be verified, whatever happens, and nothing changed that is not its own."""

from mmspec.testing.conformance.check import Broken, Untried, promise
from mmspec.testing.conformance.play import Alternating, K, Played, Player, differing, plain, unlike
from mmspec.testing.conformance.subject import Subject, Trial

Run = tuple[Trial, Played]
ALONE = 4


def runs(subject: Subject) -> list[Run]:
    """Every trial, decoded with drafts of one length. Kept, so that all checks look at the same runs."""
    return _kept(subject, "even")


def ragged(subject: Subject) -> list[Run]:
    """Every trial, decoded with drafts of every length, none at all too; and once more with rows that end early."""
    return _kept(subject, "uneven") + _kept(subject, "ended")


def _kept(subject: Subject, how: str) -> list[Run]:
    if how not in subject.kept:
        subject.kept[how] = [
            (trial, _player(trial, how).play(trial.batches, ends=_end(trial) if how == "ended" else None))
            for trial in subject.trials
        ]
    found: list[Run] = subject.kept[how]
    return found


def _player(trial: Trial, how: str) -> Player:
    return Player(trial, trial.rule(), None if how == "even" else Alternating())


def _end(trial: Trial) -> int | None:
    """The unit that ends rows of plain decoding at the most different places."""
    if not trial.bench.discrete:
        return None
    rows = [row.tolist() for row in plain(trial.bench, trial.batches)]
    units = sorted({unit for row in rows for unit in row})
    return max(units, key=lambda unit: len({(*row, unit).index(unit) for row in rows}))


def unbroken(subject: Subject, check: str, number: str) -> str:
    """`number`, where no run has anything written down under `check`."""
    for trial, played in runs(subject) + ragged(subject):
        if played.log.wrong[check]:
            raise Broken(f"on {trial.name}: {played.log.wrong[check][0]}", number)
    return number


def seen(subject: Subject, count: str) -> int:
    """A count, summed over all runs."""
    return sum(played.log.count[count] for _, played in runs(subject) + ragged(subject))


def most(subject: Subject, number: str) -> float:
    """The largest number of all runs."""
    return max(played.log.most[number] for _, played in runs(subject) + ragged(subject))


def drafts(subject: Subject) -> int:
    """Drafts of all runs."""
    return sum(played.drafts for _, played in runs(subject) + ragged(subject))


@promise("drafter")
def never_raises(subject: Subject) -> str:
    """start, propose and observe never raise: who has no idea returns an empty draft."""
    faults = sum(len(played.log.wrong["never-raises"]) for _, played in runs(subject) + ragged(subject))
    return unbroken(subject, "never-raises", f"{faults} faults in {drafts(subject)} drafts")


@promise("drafter")
def drafts_have_their_shape(subject: Subject) -> str:
    """Units are [batch, node, *unit], of the root's type and device; valid, score and distribution belong to the same
    nodes.
    """
    return unbroken(subject, "drafts-have-their-shape", f"{drafts(subject)} drafts")


@promise("drafter")
def units_in_vocabulary(subject: Subject) -> str:
    """Every unit is an id that the target has, padding too."""
    return unbroken(subject, "units-in-vocabulary", f"{seen(subject, 'units'):,} units")


@promise("drafter")
def fits_the_budget(subject: Subject) -> str:
    """A draft of budget k has at most width(k) nodes, and none deeper than k."""
    deepest, widest = most(subject, "depth"), most(subject, "nodes")
    return unbroken(subject, "fits-the-budget", f"at most {widest:.0f} nodes, depth {deepest:.0f} of k = {K}")


@promise("drafter")
def parents_come_first(subject: Subject) -> str:
    """The nodes of a draft are a forest, parents before their children."""
    return unbroken(
        subject, "parents-come-first", f"{drafts(subject)} drafts of up to {most(subject, 'nodes'):.0f} nodes"
    )


@promise("drafter", when=lambda component: "tree" in component.offers)
def siblings_differ(subject: Subject) -> str:
    """Siblings are different units, where they are not draws with replacement that a distribution reports."""
    number = f"{seen(subject, 'twins')} of {seen(subject, 'live'):,} nodes repeat a sibling"
    return unbroken(subject, "siblings-differ", number)


@promise("drafter")
def inputs_stay(subject: Subject) -> str:
    """The prompt, the state and the step that it is shown are afterwards what they were before."""
    changes = sum(len(played.log.wrong["inputs-stay"]) for _, played in runs(subject) + ragged(subject))
    return unbroken(subject, "inputs-stay", f"{changes} changes in {drafts(subject)} rounds")


@promise("drafter")
def same_seed_same_draft(subject: Subject) -> str:
    """Two new drafters, given the same seed, draft the same."""
    total = 0
    for trial, played in runs(subject):
        wrong, compared = unlike(played, Player(trial, trial.rule()).play(trial.batches))
        if wrong:
            raise Broken(f"on {trial.name}, two runs draft differently", f"{wrong} of {compared} drafts differ")
        total += compared
    return f"0 of {total:,} drafts differ"


@promise("drafter")
def second_call_is_fresh(subject: Subject) -> str:
    """A call after others is what it was at first: its output, and its drafts unless it learns (Example.learns)."""
    rows, total = 0, 0
    for trial in subject.trials:
        player, one = Player(trial, trial.rule()), [[0]]
        first, _, second = player.play(one), player.play(trial.batches), player.play(one)
        wrong = differing(first.units, second.units)
        if wrong:
            raise Broken(f"on {trial.name}, the second output differs", f"{wrong} of {len(first.units)} rows differ")
        rows += len(first.units)
        if not trial.example.learns:
            wrong, compared = unlike(first, second)
            if wrong:
                raise Broken(f"on {trial.name}, the second call drafts differently", f"{wrong} of {compared} drafts")
            total += compared
    return _nothing_differs(rows, total)


@promise("drafter")
def rows_are_independent(subject: Subject) -> str:
    """A row of a batch is what it is alone: its output, and its drafts unless it says that it learns."""
    rows, total = 0, 0
    for trial, played in runs(subject):
        if len(trial.batches) > 1:
            continue
        alone = [Player(trial, trial.rule()).play([[row]]) for row in trial.batches[0][:ALONE]]  # new: they may learn
        wrong = differing(played.units[:ALONE], [row for one in alone for row in one.units])
        if wrong:
            raise Broken(f"on {trial.name}, rows differ", f"{wrong} of {len(alone)} rows differ")
        rows += len(alone)
        if not trial.example.learns:
            wrong, compared = (sum(counts) for counts in zip(*(unlike(played, one) for one in alone), strict=True))
            if wrong:
                raise Broken(f"on {trial.name}, a row's drafts depend on its batch", f"{wrong} of {compared} drafts")
            total += compared
    if not rows:
        raise Untried("it takes one row at a time (Example.rows)")
    return _nothing_differs(rows, total)


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
            wrong = differing(run.units, plain(trial.bench, trial.batches, sample=sample))
            if wrong:
                raise Broken(
                    f"on {trial.name}, rows are not the plain ones", f"{wrong} of {len(run.units)} rows differ"
                )
            rows += len(run.units)
            lengths.append(run.length)
    if not rows:
        raise Untried("`match` does not take it")
    return f"0 of {rows} rows differ, acceptance length {min(lengths):.2f} to {max(lengths):.2f}"


@promise("drafter")
def ragged_rounds_do_no_harm(subject: Subject) -> str:
    """With rounds of every length, none too, and rows that end early, the output under `match` is the plain one."""
    rows, lengths = 0, set()
    ends = [None] * len(subject.trials) + [_end(trial) for trial in subject.trials]
    for (trial, played), end in zip(ragged(subject), ends, strict=True):
        if not trial.matched:
            continue
        wrong = differing(played.units, plain(trial.bench, trial.batches, ends=end))
        if wrong:
            raise Broken(f"on {trial.name}, rows are not the plain ones", f"{wrong} of {len(played.units)} rows differ")
        rows += len(played.units)
        lengths |= {len(row) for row in played.units}
    if not rows:
        raise Untried("`match` does not take it")
    return f"0 of {rows} rows of {min(lengths)} to {max(lengths)} units differ"
