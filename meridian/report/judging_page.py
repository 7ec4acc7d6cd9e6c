"""The page of a judging folder: which judges can be trusted, who won, who is stronger, and where the order decided."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import cast

import results_io
from calibrations.number_format import three_digits
from meridian.figures import judging
from meridian.figures.judging import Agreements, Pairwise, Rankings
from meridian.report.browsed_table import BrowsedTable, TableCell, estimate, plain
from meridian.report.folder_page import FolderPage, with_numbers
from meridian.report.sources import FieldSource
from meridian.run_folder import below
from result_types import (
    JudgeAgreementResult,
    JudgeBiasResult,
    JudgingRecord,
    PairwiseResult,
    RankingResult,
    StoredPairVerdict,
)

PAIRWISE, AGREEMENT, RANKING = "181_pairwise.json", "182_judge_agreement.json", "184_ranking.json"
FILES = (PAIRWISE, AGREEMENT, RANKING)
BIAS, WORDS = "183_judge_bias.json", {"A": 0, "B": 1}


DEPTH = 2  # results/judging/<name>


def holds(folder: Path) -> bool:
    """True if there is a judging result in the folder or below it."""
    return any(next(below(folder, name, DEPTH), None) for name in FILES)


def of(folder: Path, title: str) -> FolderPage:
    """The page of all judges below `folder`. ResultError if a result cannot be read."""
    agreements = cast(dict[str, JudgeAgreementResult], _read(folder, AGREEMENT))
    pairwise = cast(dict[str, PairwiseResult], _read(folder, PAIRWISE))
    rankings = cast(dict[str, RankingResult], _read(folder, RANKING))
    judges = _judges(agreements, cast(dict[str, JudgeBiasResult], _read(folder, BIAS)))
    refused = sum(row[1].text == "no" for row in judges.rows)
    lines = (
        f"{refused} of {len(judges.rows)} judges that were compared with people may not be deployed."
        if judges.rows
        else "No judge was compared with people: nothing is decided by what they say.",
    )
    tables = (judges, _comparisons(pairwise), _rankings(rankings), _orders(pairwise))
    drawn = judging.build(agreements, pairwise, rankings)
    return FolderPage("Judging", title, lines, tables, with_numbers(drawn, {}))


def _read(folder: Path, name: str) -> object:
    """{path below the folder: the result} for results of this name."""
    return {path.relative_to(folder).as_posix(): results_io.read(path) for path in below(folder, name, DEPTH)}


def _estimate(
    document: JudgeAgreementResult | JudgeBiasResult | PairwiseResult | RankingResult, file: str, name: str
) -> TableCell:
    """The record of this name; a dash if the result has none."""
    records: Sequence[JudgingRecord] = document["records"]
    for place, record in enumerate(records):
        if record["metric_id"].endswith(f".{document['id']}.{name}"):
            return estimate(record, FieldSource(file, f"records[{place}].value", "in brackets: ci, beside it"))
    return TableCell("–")


def _judges(agreements: Agreements, biases: Mapping[str, JudgeBiasResult]) -> BrowsedTable:
    rows = []
    for file, one in agreements.items():
        beside = str(Path(file).with_name(BIAS))
        bias = biases.get(beside)
        rows.append(
            (
                TableCell(judging.name_of(file)),
                TableCell("yes" if one["deploy"] else "no", source=FieldSource(file, "deploy")),
                _estimate(one, file, "kappa"),
                _estimate(one, file, "flip_rate"),
                _estimate(one, file, "first_position"),
                TableCell("–") if bias is None else _estimate(bias, beside, "jbs.all"),
                TableCell(", ".join(bias["found"]) or "none", source=FieldSource(beside, "found"))
                if bias
                else TableCell("not tried"),
                TableCell(
                    "; ".join(one["reasons"]) or "–", source=FieldSource(file, "reasons") if one["reasons"] else None
                ),
            )
        )
    rows.sort(key=lambda row: (row[1].text, row[2].value is None, row[2].value))
    columns = ("judge", "may be deployed", "kappa [95 %]", "flips", "first place", "bias score", "biases", "why not")
    text = "Each judge against the labels of people. Those that may not be deployed come first, the least kappa before others."
    return BrowsedTable("judges", "Judges", text, columns, tuple(rows), ("may be deployed",))


def _comparisons(pairwise: Pairwise) -> BrowsedTable:
    rows = []
    for file, one in pairwise.items():
        names = [one["subject"]["a"]["name"], one["subject"]["b"]["name"]]
        better = names[WORDS[one["verdict"]]] if one["verdict"] in WORDS else "no verdict"
        doubts = [*one["reasons"], *(["exploratory: " + "; ".join(one["exploratory"])] if one["exploratory"] else ())]
        counts = one["n"]
        rows.append(
            (
                TableCell(f"{names[0]} against {names[1]}"),
                TableCell(judging.name_of(file)),
                TableCell(better, source=FieldSource(file, "verdict")),
                _estimate(one, file, "win_rate"),
                _estimate(one, file, "flip_rate"),
                TableCell(f"{counts['A']} / {counts['tie']} / {counts['B']}", counts["A"], FieldSource(file, "n")),
                plain(counts["invalid"], FieldSource(file, "n.invalid")),
                TableCell("; ".join(doubts) or "–", source=FieldSource(file, "exploratory") if doubts else None),
            )
        )
    rows.sort(key=lambda row: (-(row[4].value or 0.0), row[0].text, row[1].text))
    columns = (
        "runs",
        "judge",
        "better",
        "win rate [95 %]",
        "flips",
        "won / tied / lost",
        "unreadable",
        "what stands against it",
    )
    text = "Two runs, every pair of answers in both orders; the win rate is that of the first. Most flips first."
    return BrowsedTable("comparisons", "Comparisons", text, columns, tuple(rows), ("judge", "better"))


def _rankings(rankings: Rankings) -> BrowsedTable:
    rows = [row for file, one in rankings.items() for row in _systems(file, one)]
    columns = ("system", "judge", "ranks", "Elo, 0 is the mean [95 %]", "log odds [95 %]", "pairs")
    text = "Systems by Bradley-Terry, the strongest first, with the ranks that the data allow."
    return BrowsedTable("rankings", "Rankings", text, columns, tuple(rows), ("judge", "system"))


def _systems(file: str, one: RankingResult) -> Iterator[tuple[TableCell, ...]]:
    ranks = one["data"]["ranks"]
    for name in sorted(ranks, key=lambda name: (ranks[name]["best"], ranks[name]["worst"], name)):
        best, worst = ranks[name]["best"], ranks[name]["worst"]
        yield (
            TableCell(name),
            TableCell(judging.name_of(file)),
            TableCell(
                str(best) if best == worst else f"{best} to {worst}", best, FieldSource(file, f'data.ranks["{name}"]')
            ),
            _estimate(one, file, f"elo.{name}"),
            _estimate(one, file, f"strength.{name}"),
            plain(one["n"]["pairs"], FieldSource(file, "n.pairs")),
        )


def _orders(pairwise: Pairwise) -> BrowsedTable:
    """Pairs whose verdict differs between the two orders, those with the largest difference in length first."""
    found = [
        (abs(pair["length_gap"]), _order(file, one, place, pair))
        for file, one in pairwise.items()
        for place, pair in enumerate(one["data"]["pairs"])
        if pair["original"] != pair["swapped"]
    ]
    found.sort(key=lambda item: -item[0])
    columns = ("item", "judge", "first order", "other order", "together", "difference in length")
    text = "Pairs of answers of which a judge says something else when their order is exchanged; unlike lengths first."
    return BrowsedTable("orders", "Where the order decides", text, columns, tuple(row for _, row in found), ("judge",))


def _order(file: str, one: PairwiseResult, place: int, pair: StoredPairVerdict) -> tuple[TableCell, ...]:
    names = {"A": one["subject"]["a"]["name"], "B": one["subject"]["b"]["name"], "tie": "tie", None: "unreadable"}
    gap = pair["length_gap"]
    return (
        TableCell(str(pair["item"]), source=FieldSource(file, f"data.pairs[{place}]")),
        TableCell(judging.name_of(file)),
        *(TableCell(names.get(said, str(said))) for said in (pair["original"], pair["swapped"], pair["merged"])),
        TableCell(three_digits(gap), gap, FieldSource(file, f"data.pairs[{place}].length_gap")),
    )
