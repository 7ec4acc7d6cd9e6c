"""Pool the certificates of all circuits and correct across them (global M93)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import results_io
from calibrations import claims_tried
from calibrations.calibrate import MULTIPLICITY, section
from calibrations.registry import CALIBRATIONS
from calibrations.rules import Standing
from calibrations.statistics import adjusted_p
from calibrations.tier_words import tier_name

KEPT = ("subject", "tier", "of", "ceiling", "p_certificate")
FAITHFULNESS = "P.faithfulness"


def summarise(results: Path, config: Mapping[str, Any]) -> Path:
    """Write results/summary.json and return its path.

    It holds every certificate's tier and verdicts, the number of claims tried, the global M93 over the certificates' records
    and, apart from it, the corrected p-values of behavioural results. Certificates are keyed and sorted by their folder
    ("model/task" or "model/task/variant"), so the file does not depend on which run ended first. A certificate of an older
    version, without a digest of its content, is left out and listed. Only one process at a time may call this for one folder
    of results. Raises ResultError for a certificate that was edited.
    """
    for left_behind in results.glob(".*.partial"):  # left by a run that was killed while writing
        left_behind.unlink(missing_ok=True)
    certificates, left_out = certificates_in(results)
    module = CALIBRATIONS[MULTIPLICITY]
    tables = {
        key: [record for row in certificate["rows"] if row["id"] != MULTIPLICITY for record in row["records"]]
        + certificate["preconditions"]
        for key, certificate in certificates.items()
    }
    levels = {key: certificate["p_certificate"] for key, certificate in certificates.items()}
    pooled = module.calibrate_global(tables, levels, section(config, MULTIPLICITY))
    path = results / "summary.json"
    results_io.write(
        path,
        {
            "kind": "summary",
            "circuits": {key: _entry(results / key, key, certificate) for key, certificate in certificates.items()},
            "claims": [one.to_dict() for one in claims_tried.of(certificates.values())],
            "multiplicity": pooled[0].to_dict(),
            "behaviour": behaviour(results, section(config, MULTIPLICITY)["alpha"]),
            "left_out": left_out,
        },
    )
    return path


def certificates_in(results: Path) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """{folder ("model/task/variant"): certificate} of all certificates below a folder of results, sorted by folder; and the
    folders of certificates that an older version wrote without a digest of their content. Raises ResultError for one that was
    edited.
    """
    found, older = {}, []
    for path in sorted(results.rglob("certificate.json")):
        key = str(path.parent.relative_to(results))
        try:
            found[key] = results_io.read(path)
        except results_io.NoDigestError:
            older.append(key)
    return found, older


def _entry(folder: Path, key: str, certificate: Mapping[str, Any]) -> dict[str, Any]:
    """One certificate in short.

    `variant` is the rest of the folder's name (None: the default run), `seed` the seed of the prompts (None if the baseline no
    longer exists), `faithfulness` {"estimate", "ci95"} under mean ablation (None if it was not reportable), `verdicts` those
    of the calibrations by ID.
    """
    subject = certificate["subject"]
    baseline = results_io.find(folder, "01")
    ratio = next((record for record in certificate["preconditions"] if record["metric"] == FAITHFULNESS), None)
    return {
        **{name: certificate[name] for name in KEPT},
        "tier_name": tier_name(certificate),
        "rules": Standing.read(certificate).to_dict(),
        "variant": key.removeprefix(f"{subject['model']}/{subject['task']}").strip("/") or None,
        "seed": results_io.read(baseline)["environment"]["seeds"]["prompts"] if baseline else None,
        "faithfulness": ratio and {name: ratio[name] for name in ("estimate", "ci95")},
        "verdicts": {row["id"]: row["verdict"] for row in certificate["rows"]},
    }


def behaviour(results: Path, alpha: float) -> dict[str, Any]:
    """Benjamini-Hochberg over the confirmatory p-values of behavioural results, within each family.

    They are kept apart from the circuits' p-values: a hundred rates would swamp a circuit's claims. Records without a p-value
    are counted, not tested. A claim counts once, however many folders hold it: a suite that was run alone and with all others
    is one test of one model. The outermost folder counts, or the first of these by name. Drift's records have no family; they
    are corrected where they are made.
    """
    seen: set[str] = set()
    families: dict[str, dict[str, float]] = {}
    untested: dict[str, int] = {}
    for path in sorted(results.rglob("1??_*.json"), key=lambda path: (len(path.parts), path)):
        try:
            document = results_io.read(path)
        except results_io.NoDigestError:  # written by an older version; its suite makes it again
            continue
        for record in document.get("records", ()):
            if record.get("role") != "confirmatory":
                continue
            if (claim := _claim(document, record)) in seen:
                continue
            seen.add(claim)
            family, name = record["family"], f"{path.parent.relative_to(results)}: {record['metric_id']}"
            if record["p_value"] is None:
                untested[family] = untested.get(family, 0) + 1
            else:
                families.setdefault(family, {})[name] = record["p_value"]
    return {
        family: {
            "tests": len(found := families.get(family, {})),
            "without_p": untested.get(family, 0),
            "adjusted_p": dict(zip(found, adjusted_p(list(found.values()), "bh").tolist(), strict=True))
            if found
            else {},
            "alpha": alpha,
        }
        for family in sorted({*families, *untested})
    }


def _claim(document: Mapping[str, Any], record: Mapping[str, Any]) -> str:
    """What a behavioural record is about: metric, model and suite; if it compares two runs (the gate), their scores."""
    if about := record.get("subject"):
        return results_io.sha256([record["metric_id"], [about["model_fingerprint"], about["suite_hash"]]])
    return results_io.sha256([record["metric_id"], [document.get("subject"), document.get("inputs_sha256")]])


def sentence(record: Mapping[str, Any]) -> str:
    """The global M93 in words."""
    value = record["published_value"]
    shown = "no nominally significant result" if value is None else f"{value:.0%} of significant results survive BH"
    return f"multiplicity over all of them: {shown}, verdict {record['verdict']}"
