"""Pool the certificates of all circuits and correct across them (global M93)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import results_io
from calibrations.calibrate import MULTIPLICITY, section
from calibrations.registry import CALIBRATIONS

KEPT = ("subject", "tier", "tier_name", "of", "ceiling", "overrides", "p_certificate")


def summarise(results: Path, config: Mapping[str, Any]) -> Path:
    """Write results/summary.json: every certificate's tier and the global M93 over their records; return its path.

    Certificates are keyed by their folder ("model/task" or "model/task/variant").
    """
    for left_behind in results.glob(".*.partial"):  # by a run that was killed while it wrote
        left_behind.unlink(missing_ok=True)
    certificates = {
        str(path.parent.relative_to(results)): results_io.read(path)
        for path in sorted(results.rglob("certificate.json"))
    }
    module = CALIBRATIONS[MULTIPLICITY]
    tables = {key: _records(certificate) for key, certificate in certificates.items()}
    levels = {key: certificate["p_certificate"] for key, certificate in certificates.items()}
    pooled = module.calibrate_global(tables, levels, section(config, MULTIPLICITY))
    path = results / "summary.json"
    results_io.write(
        path,
        {
            "kind": "summary",
            "circuits": {key: {name: certificate[name] for name in KEPT} for key, certificate in certificates.items()},
            "multiplicity": pooled[0].to_dict(),
        },
    )
    return path


def sentence(record: Mapping[str, Any]) -> str:
    """The global M93 in words."""
    value = record["published_value"]
    shown = "no nominally significant p-value" if value is None else f"{value:.0%} of significant p-values survive BH"
    return f"multiplicity over all of them: {shown}, verdict {record['verdict']}"


def _records(certificate: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    rows = [row["records"] for row in certificate["rows"] if row["id"] != MULTIPLICITY]
    return [record for records in (*rows, certificate["preconditions"]) for record in records]
