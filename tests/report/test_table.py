"""Tables say what the raw repeats say, also where it is not flattering; on the terminal and in Markdown."""

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from mmspec.report import table, views
from mmspec.report.result import Peer
from tools.cards.numbers import AGAINST, summary
from tools.report import markdown, whole
from tools.report.whole import WholeResult, load_whole


def rows(view: views.View) -> dict[str, dict[str, str]]:
    return {row[0]: dict(zip(view.header, row, strict=True)) for row in view.rows}


def test_every_setting_has_its_methods_then_its_peers(result: WholeResult) -> None:
    code, prose = views.speeds(result)
    assert (code.title, prose.title) == ("code, greedy", "prose, T = 0.8")
    assert [row[0] for row in code.rows] == [
        *("plain", "prompt-lookup", "auto", "daring"),
        *("generate", "prompt lookup", "static"),
    ]
    lookup = rows(code)["prompt-lookup"]
    assert lookup["speed-up over plain"] == "1.60 (1.44–1.60)" and lookup["acceptance length"] == "2.00"
    assert lookup["× generate"] == "1.68" and lookup["× prompt lookup"] == "1.14" and lookup["exactness"] == "invariant"
    assert lookup["tokens/s"] == "152"  # 200 units in the median repeat, 2.1 s / 1.6
    assert rows(code)["plain"]["speed-up over plain"] == "1.00 (1.00–1.00)"
    assert rows(code)["prompt lookup"]["speed-up over plain"] == "1.38 (1.33–1.40)"
    assert rows(code)["static"]["speed-up over plain"] == "not run" and "needs a compiler" in code.note
    assert "The fastest of the others: prompt lookup." in code.note


def test_slower_than_plain_is_said(result: WholeResult) -> None:
    prose = rows(views.speeds(result)[1])
    assert prose["prompt-lookup"]["speed-up over plain"] == "0.80 (0.72–0.80) slower"
    assert prose["generate"]["speed-up over plain"] == "1.00 (1.00–1.10)"


def test_lossy_rows_carry_a_warning(result: WholeResult) -> None:
    code, prose = views.speeds(result)
    assert rows(code)["daring"]["exactness"] == "⚠ lossy" and "not the model's" in code.note and not prose.note
    assert views.badge("synthetic") == "⚠ synthetic" and views.badge("lossless") == "lossless"
    assert "⚠ daring" in rows(summary(result))


def test_time_memory_and_text(result: WholeResult) -> None:
    _, lookup, _, daring, *_ = whole.costs(result).rows
    assert lookup == (
        *("code, greedy", "prompt-lookup", "10% / 80% / 10%", "12.5 MB (1.25 × plain), 4.0 MB of it copies"),
        "distinct 3 0.812, same as plain 1",
    )
    assert daring[-1] == "same as plain 0.42"


def test_modes_batches_truth_and_limits_stand_apart(result: WholeResult) -> None:
    claims = [row for view in views.speeds(result) for row in view.rows]
    assert not any("oracle" in row for row in claims) and sum(row[0] == "auto" for row in claims) == 1
    assert [row[1:3] for row in whole.modes(result).rows] == [("oracle", "oracle"), ("prompt-lookup", "empty")]
    (batch,) = views.batches(result).rows
    assert batch[3] == "8" and batch[6] == "6.40" and batch[7] == "1.20 (1.08–1.20)"
    assert rows(whole.forced(result))["prompt-lookup"] == {"method": "prompt-lookup", "code": "1.31", "prose": ""}
    passes, drafters, reached, measured = whole.limits(result)
    assert passes.rows == [("1", "1.00", "0.40"), ("2", "1.05", ""), ("16", "1.50", "")]
    assert drafters.rows == [("mmspec/text-1m", "0.210")] and measured.rows == [("bandwidth_bytes_per_s", "1.2e+10")]
    assert reached.rows == [("code, greedy / auto", "0.93", "0.81", "0.50")]


def test_the_summary_is_against_the_fastest_peer_of_every_column_which_it_names(result: WholeResult) -> None:
    shown = rows(summary(result))
    assert shown[AGAINST] == {**{"method": AGAINST, "code, greedy": "prompt lookup", "prose, T = 0.8": "generate"}}
    assert shown["prompt-lookup"]["code, greedy"] == "1.14 (1.05–1.20)" and shown["auto"]["prose, T = 0.8"] == ""
    alone = replace(result, peers={})
    assert rows(summary(alone))["prompt-lookup"]["code, greedy"] == "1.60 (1.44–1.60)"
    assert "(our own plain decoding)" in summary(alone).note and rows(summary(alone))[AGAINST] == {
        **{"method": AGAINST, "code, greedy": "plain", "prose, T = 0.8": "plain"}
    }


def test_rows_below_our_own_plain_are_marked_also_where_they_beat_the_peer(result: WholeResult) -> None:
    slow = {name: replace(peer, repeats_s=[4.0, 4.0, 4.0]) for name, peer in result.peers.items() if peer.repeats_s}
    view = summary(replace(result, peers=slow))
    assert (
        rows(view)["prompt-lookup"]["prose, T = 0.8"] == "2.91 (2.88–3.20) ▼" and "▼: slower than our own" in view.note
    )
    assert not rows(view)["prompt-lookup"]["code, greedy"].endswith("▼")
    assert rows(summary(result))["prompt-lookup"]["prose, T = 0.8"] == "0.73 (0.72–0.80) slower ▼"
    fast = [row for row in result.rows if row.setting == "code, greedy"]
    assert "▼" not in summary(replace(result, rows=fast)).note


def test_a_loop_of_ours_is_no_measure_where_plain_decoding_is_faster(result: WholeResult) -> None:
    code = "code, greedy"
    ours = {f"{code} / loop": Peer(code, [4.0, 4.2, 4.4], ours=True)}
    assert views.base_of(replace(result, peers=ours), code)[0] == "plain"
    assert views.base_of(replace(result, peers={**result.peers, **ours}), code)[0] == "prompt lookup"
    faster = {f"{code} / loop": Peer(code, [0.4, 0.4, 0.4], ours=True)}
    assert views.base_of(replace(result, peers={**result.peers, **faster}), code)[0] == "loop"


def test_a_peer_says_which_setting_it_ran_with_and_which_were_tried(result: WholeResult) -> None:
    key = "code, greedy / prompt lookup"
    tuned = replace(result.peers[key], note="", chosen="tokens=7", tried={"tokens=10": 1.36, "tokens=7": 1.21})
    note = views.speeds(replace(result, peers={**result.peers, key: tuned}))[0].note
    assert "prompt lookup: tokens=7, on a part of the prompts the fastest of tokens=10 / tokens=7." in note


def test_passes_of_drafts_over_the_same_weights_are_counted(result: WholeResult) -> None:
    cascade = replace(result.rows[0], method="cascade", acceptance_length=5.8, target_passes=33, equivalent_passes=235)
    code = views.speeds(replace(result, rows=[*result.rows, cascade]))[0]
    assert rows(code)["cascade"]["equivalent passes"] == "235" and rows(code)["plain"]["equivalent passes"] == "100"
    old = views.speeds(replace(result, rows=[replace(cascade, equivalent_passes=None)]))[0]
    assert rows(old)["cascade"]["equivalent passes"] == "not counted"
    assert "Equivalent passes: how often the target's weights were read" in views.facts(result)


def test_the_caption_says_whether_copies_of_weights_are_in_peak_memory(result: WholeResult) -> None:
    assert "copies of them laid out for narrow passes where these pay" in whole.costs(result).note
    old = replace(result, rows=[replace(row, laid_out=None) for row in result.rows])
    assert whole.costs(old).note.endswith("copies of weights laid out for narrow passes, not.")
    assert "copies" not in "".join(cell for row in whole.costs(old).rows for cell in row)
    none = replace(result, rows=[replace(row, peak_memory=None, laid_out=None) for row in result.rows])
    assert not whole.costs(none).note


def test_a_setting_of_batches_only_has_a_table_of_its_peers(result: WholeResult) -> None:
    batch = replace(result, rows=[row for row in result.rows if row.batch > 1])
    (code,) = views.speeds(batch)
    assert rows(code)["generate"]["speed-up over plain"] == "0.95 (0.95–0.95) slower"


@pytest.mark.parametrize("width", [70, 200])
def test_both_printers_show_every_number(result: WholeResult, width: int) -> None:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    table.show(result, console)
    printed, text = " ".join(console.file.getvalue().split()), markdown.markdown(result)
    for words in ("mmspec/text-14m on", "seed 0", "8 code, 8 prose", "0.93", "⚠", "slower"):
        assert words in printed and words in text
    assert "…" not in printed.replace("depth 1, 2, …", "")  # nothing is cut off
    assert "1.60 (1.44–1.60)" in printed or width < 200
    assert "| prompt-lookup | invariant | 2.00 | 100 | 152 | 1.68 | 1.60 (1.44–1.60) | 1.14 |" in text
    for block in [block for block in text.split("\n\n") if block.startswith("|")]:
        assert len({line.count("|") for line in block.splitlines()}) == 1


def test_a_result_survives_its_file(result: WholeResult, tmp_path: Path) -> None:
    result.save(tmp_path / "r.json")
    assert markdown.markdown(load_whole(tmp_path / "r.json")) == markdown.markdown(result)
    (tmp_path / "r.json").write_text('{"kind": "text"}')
    with pytest.raises(ValueError, match=r"r\.json is not the result of `mmspec bench`: model"):
        load_whole(tmp_path / "r.json")


def test_numbers_that_chance_moves_stand_beside_other_seeds_in_words_of_the_kind(result: WholeResult) -> None:
    code, prose = result.settings
    notes = {"distinct_3": "share of the triples that differ", "unused": "never shown"}
    floor = {code: {"distinct_3": [0.7, 0.9]}}
    drawn = replace(result, unit="code", piece="picture", how="Seen twice.", floor=floor, notes=notes)
    quality = whole.qualities(drawn)
    assert quality.header == ("setting", "method", "distinct 3", "same as plain")
    assert [row[1] for row in quality.rows] == ["plain", "prompt-lookup", "auto", "daring", whole.OTHERS]
    assert quality.rows[-2:] == [(code, "daring", "", "0.42"), (code, whole.OTHERS, "0.7–0.9", "")]
    assert quality.note == "Distinct 3: share of the triples that differ." and prose not in dict.fromkeys(floor)
    assert whole.costs(drawn).title == "Time, memory" and "quality" not in whole.costs(drawn).header
    assert "codes/s" in views.speeds(drawn)[0].header and views.batches(drawn).title == "Several pictures at a time"
    assert views.facts(drawn).endswith(" Seen twice.") and not whole.qualities(result).rows


def test_of_long_windows_the_first_depths_are_shown(result: WholeResult) -> None:
    long = replace(result.rows[2], acceptance_by_depth=[0.5] * 40)
    view = table.depths(replace(result, rows=[long]))
    assert view.rows[0][2].count("0.50") == table.DEPTHS and view.note == "The first 12 of up to 40 depths."
    assert not table.depths(result).note
