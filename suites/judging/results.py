"""Results 181 to 184 of a judge, and its passport."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import results_io
from suites.estimate import Estimate
from suites.judging import bias, pairs, passport, ranking, validation
from suites.judging.answers import Answers
from suites.judging.bias import Bias
from suites.judging.judge import Judge
from suites.judging.judgement_record import JudgementRecord
from suites.judging.pairs import JudgedPairs, PairwiseComparison
from suites.judging.ranking import Ranked
from suites.judging.validation import Validation
from suites.log import environment

KIND, FAMILY = "judging", "J"
SELF = "the judge is one of the candidates (judge.self=true)"


def pairwise(
    folder: Path,
    judge: Judge,
    runs: Sequence[Answers],
    judged: JudgedPairs,
    found: PairwiseComparison,
    settings: Mapping[str, Any],
    seed: int,
) -> Path:
    """Write 181: counts, win rate, flip rate, and every pair's verdict, so that it can be read again without the judge."""
    subject = {name: _run(run) for name, run in zip("ab", runs, strict=True)}
    estimates = {
        "win_rate": found.found.win_rate,
        "decided_rate": found.found.decided,
        "flip_rate": found.found.flip_rate,
        "first_position": found.found.position,
        "length_slope": found.found.length_slope,
    }
    document = {
        **_header(pairs.NUMBER, pairs.ID, judge, subject, seed),
        "n": {"pairs": len(judged.pairs), **found.found.counts, "excluded": dict(judged.excluded)},
        "verdict": found.verdict,
        "reasons": list(found.reasons),
        "exploratory": list(found.exploratory),
        "data": {
            "settings": {name: settings[name] for name in ("most_invalid", "most_flips")},
            "pairs": [
                {
                    "item": pair.id,
                    "item_hash": pair.asked.hash,
                    "cluster": pair.asked.cluster,
                    "original": said.original,
                    "swapped": said.swapped,
                    "merged": said.merged,
                    "length_gap": gap,
                }
                for pair, said, gap in zip(judged.pairs, judged.verdicts, judged.length_gaps, strict=True)
            ],
        },
        "records": [_record(pairs.ID, name, one, found.exploratory) for name, one in estimates.items()],
    }
    return _write(folder, document)


def agreement(folder: Path, judge: Judge, found: Validation, seed: int) -> list[Path]:
    """Write 182 and, for a judge of pairs, 183."""
    about = found.agreement
    estimates = {"kappa": about.kappa, "agreement": about.agreement, "ac1": about.ac1}
    estimates |= {"people_fleiss": found.people.fleiss, "people_alpha": found.people.alpha}
    estimates |= {f"people_kappa.{one}.{other}": kappa for (one, other), kappa in found.people.pairs.items()}
    if found.found is not None:
        estimates |= {
            "flip_rate": found.found.flip_rate,
            "first_position": found.found.position,
            "length_slope": found.found.length_slope,
        }
    subject = {"labels_sha256": found.labels_sha256}
    document = {
        **_header(validation.NUMBER, validation.ID, judge, subject, seed),
        "n": {"labelled": about.kappa.n, "raters": len(found.people.raters), "excluded": dict(found.excluded)},
        "deploy": found.deploy,
        "reasons": list(found.reasons),
        "data": {
            "prevalence": dict(about.prevalence),
            "raters": list(found.people.raters),
            "ceiling": found.people.ceiling,
        },
        "records": [_record(validation.ID, name, one, ()) for name, one in estimates.items()],
    }
    paths = [_write(folder, document)]
    if found.bias is not None:
        paths.append(_bias(folder, judge, found.bias, subject, seed))
    return paths


def _bias(folder: Path, judge: Judge, found: Bias, subject: Mapping[str, Any], seed: int) -> Path:
    records = [
        {**_record(bias.ID, f"jbs.{kind}", one.estimate, ()), "published": one.published.to_record()}
        for kind, one in found.jbs.items()
    ]
    document = {
        **_header(bias.NUMBER, bias.ID, judge, subject, seed),
        "n": {"cases": found.jbs[bias.OVERALL].estimate.n, "perturbations": len(found.jbs) - 1},
        "found": list(found.found),
        "data": {},
        "records": [
            *records,
            _record(bias.ID, "own_texts", found.own, ()),
            _record(bias.ID, "first_place", found.place, ()),
        ],
    }
    return _write(folder, document)


def passport_of(folder: Path, judge: Judge, found: Validation, record: JudgementRecord) -> Path:
    """Write judge.json, and record the result of the validation in a line that has the date."""
    kappa = found.agreement.kappa
    path = passport.write(
        folder,
        {
            "judge": judge.fingerprint,
            "identity": judge.identity,
            "rubric": {"name": judge.rubric.name, "sha256": judge.rubric.sha256},
            "labels_sha256": found.labels_sha256,
            "n": kappa.n,
            "kappa": kappa.value,
            "ci": None if kappa.ci is None else [kappa.ci.low, kappa.ci.high],
            "biases": [] if found.bias is None else list(found.bias.found),
            "deploy": found.deploy,
            "reason": "; ".join(found.reasons),
        },
    )
    about = {"judge": judge.fingerprint, "rubric": judge.rubric.sha256, "labels": found.labels_sha256}
    record.validated(**about, deploy=found.deploy, passport=results_io.file_digest(path))
    return path


def ranked(
    folder: Path,
    judge: Judge,
    runs: Sequence[Answers],
    found: Ranked,
    exploratory: Sequence[str],
    settings: Mapping[str, Any],
    seed: int,
) -> Path:
    """Write 184: strengths and ranks, differences with p adjusted by Holm, transitivity and fit."""
    one = found.ranking
    subject = {"runs": {name: _run(run) for name, run in zip(one.systems, runs, strict=True)}}
    estimates: dict[str, Estimate] = {f"strength.{name}": value for name, value in one.strengths.items()}
    estimates |= {f"elo.{name}": value for name, value in one.elo.items()}
    differences = {
        f"difference.{a}.{b}": (value, one.adjusted.get((a, b))) for (a, b), value in one.differences.items()
    }
    rest = {"cyclic_triples": one.cyclic, "deviance": one.fit}
    document = {
        **_header(ranking.NUMBER, ranking.ID, judge, subject, seed),
        "n": {"systems": len(one.systems), "pairs": found.pairs, "invalid": found.invalid},
        "exploratory": list(exploratory),
        "data": {
            "settings": {name: settings[name] for name in ("resamples", "alpha", "half_wins")},
            "systems": list(one.systems),
            "wins": one.wins,
            "ranks": {name: {"best": best, "worst": worst} for name, (best, worst) in one.ranks.items()},
            "excluded": {f"{a} {b}": dict(judged.excluded) for (a, b), judged in found.judged.items()},
        },
        "records": [
            *(_record(ranking.ID, name, value, exploratory) for name, value in {**estimates, **rest}.items()),
            *(
                {**_record(ranking.ID, name, value, exploratory), "adjusted_p": adjusted}
                for name, (value, adjusted) in differences.items()
            ),
        ],
    }
    return _write(folder, document)


def _header(number: str, name: str, judge: Judge, subject: Mapping[str, Any], seed: int) -> dict[str, Any]:
    rubric = {"name": judge.rubric.name, "kind": judge.rubric.kind, "sha256": judge.rubric.sha256}
    about = {"judge": judge.fingerprint, "judge_name": judge.name, "judge_identity": judge.identity, "rubric": rubric}
    return {
        "number": number,
        "id": name,
        "kind": KIND,
        "subject": {**about, **subject},
        "environment": {**environment.of_judging(), "seeds": {"bootstrap": seed}},
    }


def _run(run: Answers) -> dict[str, Any]:
    about = {"name": run.name, "identity": dict(run.identity), "answers_sha256": run.sha256}
    return {**about, "suite": run.suite, "suite_hash": run.suite_hash}


def _record(result: str, name: str, estimate: Estimate, exploratory: Sequence[str]) -> dict[str, Any]:
    role = "exploratory" if exploratory else "confirmatory" if name in ("win_rate", "kappa") else "descriptive"
    return {"metric_id": f"{FAMILY}.{result}.{name}", "family": FAMILY, "role": role, **estimate.to_record()}


def _write(folder: Path, document: Mapping[str, Any]) -> Path:
    path = Path(folder) / f"{document['number']}_{document['id']}.json"
    results_io.write(path, document)
    return path
