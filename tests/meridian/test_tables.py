"""Tables of a finished run: the numbers of the results, types through Parquet, and LaTeX that compiles."""

from __future__ import annotations

import io
import re
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import results_io
from calibrations import preconditions
from calibrations.number_format import number
from calibrations.worst_groups import WorstGroups
from meridian import paper, tables
from meridian.figures import heads as head_figures
from meridian.run_folder import RunFolder
from meridian.tables import Table
from results_io import UserError
from tests.meridian.judged import judged
from tests.result_samples import completed


@pytest.fixture(scope="module")
def run(finished: Path) -> RunFolder:
    return RunFolder.open(finished)


@pytest.fixture(scope="module")
def made(run: RunFolder) -> dict[str, Table]:
    return tables.of(run)


def test_the_certificate_has_the_records_of_the_claim_and_sixteen_calibrations(
    run: RunFolder, made: dict[str, Table]
) -> None:
    frame = made["certificate"].frame
    assert frame["id"].tolist() == ["P"] * 10 + [row["id"] for row in run.certificate["rows"]]
    assert frame["verdict"].tolist()[10:] == [row["verdict"] for row in run.certificate["rows"]]
    assert frame.loc[0, "estimate"] == run.certificate["preconditions"][0]["estimate"]
    assert frame.loc[0, "ci90_low"] == run.certificate["preconditions"][0]["ci90"][0]
    assert frame.loc[0, "prompts"] == len(run.evidence.clean)
    assert len(made["records"].frame) == sum(len(row["records"]) for row in run.certificate["rows"])


def test_in_print_statistics_have_their_own_names(made: dict[str, Table]) -> None:
    shown = tables.printed(made["certificate"])["quantity"].tolist()
    assert {"F59 Kendall's W", "C14 d'", "effect to share out (t of mean D)"} <= set(shown)
    text = tables.latex(made["records"]).decode() + tables.latex(made["certificate"]).decode()
    assert not re.search(r"kendalls|d prime|denominator", text)


def test_every_record_is_that_of_the_certificate(run: RunFolder, made: dict[str, Table]) -> None:
    """Column by column: what a record lacks is missing in the table."""
    stored = [record for row in run.certificate["rows"] for record in row["records"]]
    decisive = [
        record for row in run.certificate["rows"] for record in row["records"] if record["metric"] == row["decisive"]
    ]
    tested = run.certificate["preconditions"] + decisive
    of_certificate = made["certificate"].frame.dropna(subset="metric")
    sizes = {
        record["metric"]: record["n"]
        for name in ("P", *(row["id"] for row in run.certificate["rows"]))
        for record in (run.calibration(name) or {"records": []})["records"]
    }
    for frame, records in ((made["records"].frame, stored), (of_certificate, tested)):
        for (_, shown), record in zip(frame.iterrows(), records, strict=True):
            for name in ("metric", "published_rule", "published_verdict", "ci_method", "verdict", "gating", "needs"):
                assert shown[name] == record[name] or (record[name] is None and pd.isna(shown[name])), name
            ends = {
                f"{ci}_{end}": (record[ci] or (None, None))[place]
                for ci in ("ci90", "ci95")
                for place, end in enumerate(("low", "high"))
            }
            for name, value in {**{k: record[k] for k in ("published_value", "estimate", "p")}, **ends}.items():
                np.testing.assert_equal(shown[name], np.nan if value is None else float(value), name)
            assert shown["reasons"] == "; ".join(record["reasons"])
            for name in ("prompts", "clusters"):
                count = sizes[record["metric"]].get(name)
                assert pd.isna(shown[name]) if count is None else shown[name] == count
    assert made["records"].frame[["p", "ci90_low", "ci95_high", "estimate"]].notna().any().all()


def test_worst_groups_are_those_of_the_certificate_with_both_losses(finished: Path, tmp_path: Path) -> None:
    run = RunFolder.open(judged(finished, tmp_path / "run"))
    made, found = tables.of(run), WorstGroups.read(run.certificate)
    frame = made["completeness_groups"].frame
    assert frame["heads"].tolist() == [group.heads_text for group in found.claimed] and len(frame) == 25
    assert frame["lost_by_circuit"].tolist() == [group.lost_by_circuit for group in found.claimed]
    assert frame["lost_by_model"].tolist() == [group.lost_by_model for group in found.claimed]
    np.testing.assert_allclose(frame["lost_by_circuit"] - frame["lost_by_model"], frame["inc"], atol=1e-6)
    assert frame["ci90_low"].le(frame["inc"]).all() and frame["inc"].le(frame["ci90_high"]).all()
    shown, group = tables.printed(made["completeness_groups"]), found.claimed[0]
    assert shown.iloc[0].tolist() == [
        group.heads_text,
        group.recipe_text,
        number(group.lost_by_circuit),
        number(group.lost_by_model),
        group.incompleteness_text,
        number(group.published_score),
    ]
    assert "p{5cm}lllll" in tables.latex(made["completeness_groups"]).decode()  # fourteen heads break their line
    outside = made["outside_groups"].frame
    assert outside["share"].tolist() == [group.share for group in found.outside] and len(outside) == 17
    assert tables.printed(made["outside_groups"])["share"].tolist() == [group.share_text for group in found.outside]


def test_heads_outside_with_large_effects_have_every_effect_and_rank(run: RunFolder, made: dict[str, Table]) -> None:
    frame = made["outside_effects"].frame.set_index("head")
    evidence = run.evidence
    noising = evidence.head_effect("02", "noising").mean(axis=0)
    assert frame.index[0] == "L0H2" and frame.loc["L0H2", "noising"] == pytest.approx(noising.max())
    assert frame.loc["L0H2", "noising_rank"] == 1 and frame.loc["L0H2", "knock_out"] < 0.1
    assert (frame[["noising", "denoising", "knock_out"]].abs().max(axis=1) > 0.1 * evidence.clean.mean()).all()
    assert frame.loc["L0H2", "noising_low95"] < frame.loc["L0H2", "noising"] < frame.loc["L0H2", "noising_high95"]


def test_heads_about_which_methods_disagree_are_those_of_the_report(run: RunFolder, made: dict[str, Table]) -> None:
    frame = made["methods_disagree"].frame.set_index("head")
    heads = made["heads"].frame
    size = heads["02_noising"].abs().rank(ascending=False, method="first")
    largest = {
        f"L{layer}H{head}": int(rank) for layer, head, rank in zip(heads["layer"], heads["head"], size, strict=True)
    }
    outside = frame[frame["role"].isna()]
    assert outside.index[0] == "L0H2" and outside.loc["L0H2", "noising_rank"] == largest["L0H2"] == 1
    assert "noising" in outside.loc["L0H2", "against_the_claim"]
    first = len(heads) // 4
    ranks = outside[[name for name in frame if name.endswith("_rank")]]
    assert (ranks.min(axis=1) <= first).all() and len(outside) < (~heads["in_circuit"]).sum()
    assert set(largest) - set(frame.index)  # most agree


def test_failure_rates_and_carriers_are_the_stored_ones(tmp_path: Path) -> None:
    place = tmp_path / "m" / "ioi"
    results_io.write(place / "certificate.json", {"subject": {"model_sha256": "w"}})
    rate = {"metric_id": "A1.s.failure_rate", "suite": "s", "n": 50, "value": 0.3, "ci": {"low": 0.2, "high": 0.45}}
    open_gate = {**rate, "suite": "t", "n": 7, "value": 0.1, "ci": None, "threshold": None, "passed": None}
    records = [{**rate, "threshold": 0.25, "passed": False}, {**rate, "metric_id": "A1.s.other"}, open_gate]
    data = {"mode": "A1", "title": "JSON"}
    document = completed("101", subject={"identity": {"weights": "w"}}, data=data, records=records)
    results_io.write(tmp_path / "m" / "suites" / "101_x.json", document)
    named = [
        {"head": "L0H1", "restored": 0.5, "low": 0.4, "high": 0.7},
        {"head": "L2H3", "restored": 0.2, "low": -0.1, "high": 0.3},
    ]
    results_io.write(place / "141_trace.json", completed("141", named=named))
    judged = [{"head": "L2H3", "restored": 0.25, "interval": [0.1, 0.4], "verdict": "undecided"}]
    results_io.write(place / "142_carriers.json", completed("142", records=judged))
    rates, carriers = tables.failure_rates(RunFolder(place)).frame, tables.carriers(RunFolder(place)).frame
    columns = ["mode", "title", "suite", "items", "failure_rate", "failure_rate_low95", "failure_rate_high95"]
    assert rates[columns].iloc[0].tolist() == ["A1", "JSON", "s", 50, 0.3, 0.2, 0.45]
    assert rates["suite"].tolist() == ["s", "t"]
    assert rates["threshold"].tolist()[0] == 0.25 and rates["passed"].tolist() == [False, pd.NA]
    assert rates[columns[5:]].iloc[1].isna().all()
    assert carriers.iloc[0].tolist()[:4] == ["L0H1", 0.5, 0.4, 0.7] and carriers.iloc[0, 4:].isna().all()
    assert carriers.iloc[1].tolist() == ["L2H3", 0.2, -0.1, 0.3, 0.25, "undecided"]
    assert carriers.columns.tolist()[1:4] == ["restored", "restored_low95", "restored_high95"]
    results_io.write(
        tmp_path / "m" / "suites" / "101_x.json",
        document | {"subject": {**document["subject"], "identity": {"weights": "other"}}},
    )
    assert tables.failure_rates(RunFolder(place)) is None


def test_captions_say_which_measurements_have_no_interval_and_how_many_edges_were_chosen(
    run: RunFolder, made: dict[str, Table]
) -> None:
    heads, edges = made["heads"], made["edges"]
    without = heads.caption.partition("no interval: ")[2].rstrip(".").split("; ")
    titles = {figure.name.removeprefix("heads_"): figure.title for figure in head_figures.build(run)}
    measured = [name for name in heads.frame.columns[4:] if not name.endswith(("_low95", "_high95"))]
    bare = [name for name in measured if f"{name}_low95" not in heads.frame]
    assert without == [titles[name] for name in bare] and "07_score" in bare and "02_denoising" not in bare
    assert "Weights: copying" in tables.latex(heads).decode() and not any("_" in title for title in without)
    kept = sum(run.data("28")["circuit"]["kept"])
    assert f"all {len(edges.frame)} edges" in edges.caption and f"; {kept} of them were chosen" in edges.caption
    assert tables.printed(edges)["kept"].tolist().count("yes") == kept < len(edges.frame)


def test_heads_hold_the_means_of_the_evaluation_prompts(run: RunFolder, made: dict[str, Table]) -> None:
    frame, evidence = made["heads"].frame, run.evidence
    assert frame[["layer", "head"]].to_numpy().tolist() == [list(head) for head in evidence.heads]
    assert frame["in_circuit"].tolist() == evidence.in_circuit.tolist()
    assert frame["in_circuit"].equals(frame["role"].notna())
    mean = evidence.head_effect("02", "denoising").mean(axis=0)
    assert frame["02_denoising"].to_numpy() == pytest.approx(mean)


def test_prompts_are_those_of_01_and_what_the_circuit_makes_of_them(run: RunFolder, made: dict[str, Table]) -> None:
    frame, data = made["prompts"].frame, run.data("01")
    assert len(frame) == len(data["prompt_id"]) and frame["prompt_id"].is_unique
    assert frame["correct"].dtype == bool
    alone = frame.set_index("prompt_id").loc[[data["prompt_id"][row] for row in run.evidence.rows]]
    assert alone["circuit_mean"].to_numpy() == pytest.approx(run.evidence.ablated("circuit", "mean"))


def test_faithfulness_is_that_of_the_preconditions(run: RunFolder, made: dict[str, Table]) -> None:
    if "faithfulness" not in made:
        pytest.fail("the run has no faithfulness to compare")
    frame = made["faithfulness"].frame.set_index(["split", "recipe"])
    ratio = preconditions.faithfulness(run.evidence, run.settings)
    row = frame.loc[("evaluation", "mean")]
    assert (row["faithfulness"], row["faithfulness_low95"], row["faithfulness_high95"]) == (
        ratio.value,
        *ratio.fieller(0.95),
    )


def test_edges_are_the_stored_means(run: RunFolder, made: dict[str, Table]) -> None:
    data = run.data("28")
    assert made["edges"].frame["noising"].to_numpy() == pytest.approx(data["noising_mean"], abs=1e-6)
    assert set(made["edges"].frame["kept"]) <= {True, False}


def test_parquet_keeps_types_and_values_and_csv_keeps_values(made: dict[str, Table]) -> None:
    for name, table in made.items():
        back = pd.read_parquet(io.BytesIO(tables.parquet(table)))
        pd.testing.assert_frame_equal(back, table.frame, obj=name)
        assert back.attrs == {"name": name, "caption": table.caption}
        read = pd.read_csv(io.BytesIO(tables.csv(table)))
        assert read.columns.tolist() == table.frame.columns.tolist()
        for column in table.frame.select_dtypes("float64"):
            np.testing.assert_array_equal(read[column].to_numpy(), table.frame[column].to_numpy())


HOSTILE = Table(
    "a_b", "5 % & more", pd.DataFrame({"x_y": ["a_b & 50 %", "$\\x$ {#} ~^", "é→"], "value": [0.5, np.nan, 1e-5]})
)


def test_latex_escapes_special_signs_and_marks_what_is_missing() -> None:
    text = tables.latex(HOSTILE).decode()
    assert r"a\_b \& 50 \%" in text and "é→" in text and r"\toprule" in text and r"\label{tab:a_b}" in text
    assert r"\$\textbackslash x\$ \{\#\} \textasciitilde \textasciicircum" in text.replace("{}", "").replace(
        r"backslash  x", "backslash x"
    )
    rows = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert all(len(re.findall(r"(?<!\\)&", line)) == 1 for line in rows) and len(rows) == 4
    assert rows[2].rstrip("\\ ").endswith("-")


def test_an_interval_is_printed_beside_its_estimate() -> None:
    frame = pd.DataFrame({"name": ["a", "b"], "x": [0.5, 2.0], "x_low95": [0.25, np.nan], "x_high95": [0.75, np.nan]})
    assert tables.printed(Table("t", "", frame)).to_numpy().tolist() == [["a", "0.50 [0.25, 0.75]"], ["b", "2.00"]]


def test_the_command_says_how_many_figures_are_done(run: RunFolder, tmp_path: Path, monkeypatch) -> None:
    drawn: list[str] = []
    monkeypatch.setattr(paper.static, "write", lambda figure, *rest: drawn.append(figure.name))
    asked = {
        "formats": ["svg"],
        "tables": [],
        "width": "single",
        "titles": False,
        "theme": "light",
        "only": ["heads_02*", "heads_0[5-9]*"],
    }
    said: list[str] = []
    paper.write(run, asked, tmp_path, say=said.append)
    assert len(drawn) > 6 and said[0] == f"Reading the results of {run.path}"
    assert said[1:] == [f"{place} of {len(drawn)} figures" for place in range(5, len(drawn), 5)]


@pytest.mark.slow
def test_the_command_writes_what_was_asked_for_and_the_same_bytes_again(run: RunFolder, tmp_path: Path) -> None:
    settings = {"formats": ["svg"], "tables": ["csv", "tex"], "width": "single", "titles": False, "theme": "light"}
    asked = {**settings, "only": ["heads_02_denoising", "certificate"]}
    written = paper.write(run, asked, tmp_path / "one")
    paper.write(run, asked, tmp_path / "two")
    found = {str(path.relative_to(tmp_path / "one")): path.read_bytes() for path in (tmp_path / "one").rglob("*.*")}
    names = ("figures/heads_02_denoising.svg", "figures/captions.md")  # LaTeX includes no SVG
    assert set(found) == {*names, "tables/certificate.csv", "tables/certificate.tex"}
    assert all((tmp_path / "two" / name).read_bytes() == content for name, content in found.items())
    assert "Figures: 1," in written.sentence() and "tables: 1 " in written.sentence()
    shutil.rmtree(tmp_path / "one")
    check_refusals(run, asked, tmp_path)


@pytest.mark.slow
def test_captions_are_of_all_figures_in_the_folder(run: RunFolder, tmp_path: Path) -> None:
    settings = {"tables": [], "width": "single", "titles": False, "theme": "light"}
    for only, formats in (
        ("heads_02_denoising", ["png", "pdf"]),
        ("heads_02_noising", ["png"]),
        ("heads_07_score", ["svg"]),
    ):
        paper.write(run, {**settings, "only": only, "formats": formats}, tmp_path)
    text, tex = ((tmp_path / "figures" / f"captions.{form}").read_text() for form in ("md", "tex"))
    titles = [line.removeprefix("## ") for line in text.splitlines() if line.startswith("## ")]
    assert titles == ["heads_02_denoising", "heads_02_noising", "heads_07_score"]
    assert re.findall(r"{figures/(.*?)}", tex) == ["heads_02_denoising.pdf", "heads_02_noising.png"]


def check_refusals(run: RunFolder, asked: dict, tmp_path: Path) -> None:
    for wrong, sentence in (
        ({"formats": ["gif"]}, "figures.formats"),
        ({"width": "x"}, "figures.width"),
        ({"tables": ["xls"]}, "figures.tables"),
    ):
        with pytest.raises(UserError, match=sentence):
            paper.write(run, {**asked, **wrong}, tmp_path / "one")
    assert not (tmp_path / "one").exists()
