"""`mmspec verify SCRIPT.py`: the proof that anyone can make on their own code."""

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mmspec.report import terminal

if TYPE_CHECKING:
    from mmspec.compare.verdict import Line, Verdict


def verify(
    context: typer.Context,
    script: Annotated[Path, typer.Argument(help="A script that calls `generate` of transformers models.")],
    args: Annotated[list[str] | None, typer.Argument(help="The script's own arguments, after `--`.")] = None,
    method: Annotated[str, typer.Option(help="See `mmspec methods`.")] = "auto",
    drafter: Annotated[str | None, typer.Option(help="A drafter's name or a smaller model.")] = None,
    rule: Annotated[str | None, typer.Option(help="Acceptance rule; default: the method's.")] = None,
    num_speculative_tokens: Annotated[int | None, typer.Option("--num-speculative-tokens", "-k", min=0)] = None,
    policy: Annotated[str | None, typer.Option(help="How many to draft: fixed, confidence, goodput.")] = None,
    opt: Annotated[list[str] | None, typer.Option(help="key=value of drafter, rule or policy; repeatable.")] = None,
    repeats: Annotated[int, typer.Option(min=1, max=1000, help="Runs of each kind, in turn; seconds are medians.")] = 1,
) -> None:
    """Run a script without and with mmspec, and compare every output.

    The script knows nothing of mmspec. It runs in a process of its own each time. The ids of every generate call, in
    order, and everything it prints have to be equal, byte for byte; lines that two plain runs print differently, such
    as times, do not count. A call that mmspec refuses is left to transformers, listed with the reason, and not counted
    as equal: "left alone", where the refusal is documented (beam search, encoder–decoders, …) or the call raises either
    way; else "not supported", which is a failure.

    Exit code 0: all calls equal. 1: an output is wrong, a call that transformers can do is not supported, or the script
    fails with mmspec only. 2: nothing can be said: the script fails by itself, does not repeat itself, or has no call
    that mmspec decodes. 3: texts part at near-ties only, where rounding decides. 4: all calls that mmspec decodes are
    equal, and it leaves others alone. 130, 143: it was stopped, and the script with it.
    """
    from mmspec.compare.children import Script, ScriptFailed
    from mmspec.compare.group import signals_end
    from mmspec.compare.verdict import NOTHING, WRONG, judge
    from mmspec.registry import installed
    from mmspec.registry.matching import named
    from mmspec.registry.options import parse

    if not script.is_file():
        raise ValueError(f"there is no script {script}")
    found = named(installed(), method)
    how = {"method": method, "drafter": drafter, "rule": rule, "k": num_speculative_tokens, "policy": policy}
    plugins = context.find_root().params.get("plugin") or []
    with signals_end(), tempfile.TemporaryDirectory(prefix="mmspec-verify-") as work:
        task = Script(script, args or [], how | parse(opt or []), plugins, Path(work))
        try:
            verdict = judge(task.run(repeats, lambda line: typer.echo(line, err=True)))
        except ScriptFailed as failure:
            typer.echo(failure.trace, err=True, nl=False)
            typer.echo(f"mmspec: {failure}", err=True)
            raise typer.Exit(WRONG if failure.speculating else NOTHING) from None
        _show(verdict, found.exactness)
    raise typer.Exit(verdict.code)


def _show(verdict: "Verdict", exactness: str | None) -> None:
    console = terminal.terminal()
    columns = ("", "model", "rows × new", "plain s", "mmspec s", "ids")
    terminal.table(console, columns, map(_row, verdict.lines), whole=columns[:-1])
    for text in ("* a model's first call, in which it warms up", *_summary(verdict, exactness)):
        terminal.line(console, text)


def _row(line: "Line") -> tuple[str, ...]:
    number = f"{line.plain.number}{'*' if line.plain.first else ''}"
    seconds = f"{line.plain_s:.3f}", f"{line.ours_s:.3f}" if line.ours else ""
    return number, line.plain.model, line.shape, *seconds, _outcome(line)


def _outcome(line: "Line") -> str:
    untried = line.outcome.kind in ("left alone", "not supported")
    return f"{line.outcome.kind}: {line.outcome.text}" if untried else line.outcome.text


def _summary(verdict: "Verdict", exactness: str | None) -> list[str]:
    """What stands below the table; the last line is the verdict."""
    texts = [f"stdout: {verdict.printed.text}"]
    speedup, warm = verdict.speedup(), verdict.speedup(warm=True)
    if speedup is not None:
        methods = sorted({(line.ours.method, line.ours.why) for line in verdict.speculated if line.ours})
        spent = [sum(seconds) for seconds in zip(*((x.plain_s, x.ours_s) for x in verdict.speculated), strict=True)]
        texts += [
            "method: " + "; ".join(why or name for name, why in methods),
            f"generate: {spent[0]:.3f} s plainly, {spent[1]:.3f} s with mmspec: {speedup:.2f}×"
            + (" (slower than plain)" if speedup < 1 else "")
            + (f", {warm:.2f}× without first calls" if warm is not None else "")
            + f"; acceptance length {verdict.acceptance_length:.2f}",
        ]
    if exactness == "lossless" and verdict.code:
        texts += [
            "this method promises the distribution, not the path: a sampled text is another one, a greedy one is not"
        ]
    return [*texts, _last(verdict)]


def _last(verdict: "Verdict") -> str:
    wrong = any(line.outcome.kind == "wrong" for line in verdict.lines) or verdict.printed.kind == "wrong"
    heading = (
        "EQUAL, byte for byte",
        "NOT EQUAL" if wrong else "NOT SUPPORTED",
        "NOTHING CAN BE SAID: " + ("the script does not repeat itself" if verdict.speculated else "nothing compared"),
        "EQUAL UP TO NEAR-TIES, where rounding decides",
        "EQUAL BUT FOR WHAT WAS LEFT ALONE",
    )[verdict.code]
    return f"{heading}: {verdict.tally()}; stdout {verdict.printed.kind}"
