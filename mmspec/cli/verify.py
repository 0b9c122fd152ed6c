"""`mmspec verify SCRIPT.py`: compare the outputs of a user's own script, without and with mmspec."""

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mmspec.cli.arguments import Drafted, Drafter, Method, Options, PolicyName, RuleName
from mmspec.report import terminal

if TYPE_CHECKING:
    from mmspec.compare.comparison import ComparedCall, Comparison
    from mmspec.compare.findings import Finding


def verify(
    context: typer.Context,
    script: Annotated[Path, typer.Argument(help="A script that calls `generate` of transformers models.")],
    args: Annotated[list[str] | None, typer.Argument(help="The script's own arguments, after `--`.")] = None,
    *,
    method: Method = "auto",
    drafter: Drafter = None,
    rule: RuleName = None,
    num_speculative_tokens: Drafted = None,
    policy: PolicyName = None,
    opt: Options = None,
    repeats: Annotated[int, typer.Option(min=1, max=1000, help="Runs of each kind, in turn; seconds are medians.")] = 1,
    reference: Annotated[
        str, typer.Option(help="generate: of transformers (float32 only); plain: of the method's shape (any dtype).")
    ] = "generate",
) -> None:
    """Run a script without and with mmspec, and compare every output.

    The script needs no change. Each run is a new process. The ids of every generate call, in order, and everything
    that the script prints have to be equal, byte for byte; lines that two plain runs print differently, such as times,
    do not count. A call that mmspec refuses is left to transformers, listed with the reason, and not counted
    as equal: "left alone", where the refusal is documented (beam search, encoder–decoders, …) or the call raises either
    way; else "not supported", which is a failure.

    What equals what: with `--reference generate`, unmodified transformers, up to near-ties, in float32 only. With
    `--reference plain`, mmspec's plain decoding of the same shape (all passes of both have one width, and the same
    rows): to the bit, in every dtype; the seconds are then no speed-up, since width costs plain decoding time.
    Pipelines of pictures and frames are not reached; in a clone `python -m tools.bench one-shape` compares theirs.

    Exit code 0: all calls equal. 1: an output is wrong, a call that transformers can do is not supported, or the script
    fails with mmspec only. 2: nothing can be said: the script fails by itself, does not repeat itself, has no call that
    mmspec decodes, or its ids differ from transformers' in half precision. 3: texts part at near-ties only,
    where rounding decides. 4: all calls that mmspec decodes are equal, and it leaves others alone. 130, 143: it was
    stopped, and the script with it.
    """
    from mmspec.compare.children import PLAIN, REFERENCES, Script, ScriptFailed, signals_end
    from mmspec.compare.comparison import NOTHING, WRONG, compare
    from mmspec.registry import installed
    from mmspec.registry.matching import named
    from mmspec.registry.options import parse
    from mmspec.registry.suggest import unknown

    if not script.is_file():
        raise ValueError(f"there is no script {script}")
    found = named(installed(), method)
    how = {"method": method, "drafter": drafter, "rule": rule, "k": num_speculative_tokens, "policy": policy}
    if reference not in REFERENCES:
        raise ValueError(unknown("reference", reference, REFERENCES))
    if reference == PLAIN:
        if found.exactness != "invariant":
            raise ValueError(f"{method!r} promises the distribution, not the path: no plain decoding has its output")
        how["shape"] = "one"
    plugins = context.find_root().params.get("plugin") or []
    with signals_end(), tempfile.TemporaryDirectory(prefix="mmspec-verify-") as work:
        task = Script(script, args or [], how | parse(opt or []), plugins, Path(work), reference)
        try:
            comparison = compare(task.run(repeats, lambda line: typer.echo(line, err=True)))
        except ScriptFailed as failure:
            typer.echo(failure.trace, err=True, nl=False)
            typer.echo(f"mmspec: {failure}", err=True)
            raise typer.Exit(WRONG if failure.speculating else NOTHING) from None
        _show(comparison, found.exactness)
    raise typer.Exit(comparison.code)


def _show(comparison: "Comparison", exactness: str | None) -> None:
    console = terminal.terminal()
    columns = ("", "model", "rows × new", "plain s", "mmspec s", "ids")
    terminal.table(console, columns, map(_row, comparison.calls), whole=columns[:-1])
    for text in ("* a model's first call, in which it warms up", *_summary(comparison, exactness)):
        terminal.line(console, text)


def _row(call: "ComparedCall") -> tuple[str, ...]:
    number = f"{call.plain.number}{'*' if call.plain.first else ''}"
    seconds = f"{call.plain_s:.3f}", f"{call.ours_s:.3f}" if call.ours else ""
    return number, call.plain.model, call.shape, *seconds, _ids(call.finding)


def _ids(finding: "Finding") -> str:
    untried = finding.kind in ("left alone", "not supported")
    return f"{finding.kind}: {finding.text}" if untried else finding.text


def _summary(comparison: "Comparison", exactness: str | None) -> list[str]:
    """The lines below the table; the last one is the result."""
    texts = [f"stdout: {comparison.stdout.text}"]
    if comparison.decoded:
        methods = sorted({(call.ours.method, call.ours.why) for call in comparison.decoded if call.ours})
        texts += [
            "method: " + "; ".join(why or name for name, why in methods),
            f"{_speed(comparison)}; acceptance length {comparison.acceptance_length:.2f}",
        ]
    if comparison.widths:
        widths = " and ".join(map(str, comparison.widths))
        texts += [f"compared: to the bit with plain of width {widths}, in the dtype of the weights"]
    if comparison.half:
        from mmspec.core.promise import HALF

        texts += [f"{HALF}; --reference plain compares with plain decoding of the same shape, to the bit"]
    if exactness == "lossless" and comparison.code:
        texts += [
            "this method promises the distribution, not the path: a sampled text is another one, a greedy one is not"
        ]
    return [*texts, _last(comparison)]


def _speed(comparison: "Comparison") -> str:
    """The speed-up by the seconds of the warm calls, in words."""
    speedup = comparison.speedup()
    if speedup is None:
        return "speed: too few calls to say, as each is a model's first one; call generate once more"
    plain_s, ours_s = sum(call.plain_s for call in comparison.timed), sum(call.ours_s for call in comparison.timed)
    plainly = "with plain of the same width" if comparison.widths else "plainly"
    slower = " (slower than plain)" if speedup < 1 else ""
    return (
        f"generate, without first calls: {plain_s:.3f} s {plainly}, {ours_s:.3f} s with mmspec: {speedup:.2f}×{slower}"
    )


def _why_nothing(comparison: "Comparison") -> str:
    if not comparison.decoded:
        return "nothing compared"
    unsteady = "unsteady" in {comparison.stdout.kind, *(call.finding.kind for call in comparison.calls)}
    return "the script does not repeat itself" if unsteady else "ids differ in half precision; try --reference plain"


def _last(comparison: "Comparison") -> str:
    wrong = "wrong" in {comparison.stdout.kind, *(call.finding.kind for call in comparison.calls)}
    heading = (
        "EQUAL, byte for byte",
        "NOT EQUAL" if wrong else "NOT SUPPORTED",
        f"NOTHING CAN BE SAID: {_why_nothing(comparison)}",
        "EQUAL UP TO NEAR-TIES, where rounding decides",
        "EQUAL BUT FOR WHAT WAS LEFT ALONE",
    )[comparison.code]
    return f"{heading}: {comparison.tally()}; stdout {comparison.stdout.kind}"
