"""A finished run in a notebook: its folder of results, with verdicts, heads and figures as attributes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd

from calibrations import certificate, claims_tried, summary
from calibrations.certificate_row import CertificateRow, calibrations_of
from calibrations.claimed_nodes import ClaimedNode
from calibrations.claimed_nodes import names as claimed_names
from calibrations.claims_tried import ClaimsTried
from calibrations.registry import CALIBRATIONS
from calibrations.tier_words import tier_text
from meridian import failure_carriers, figures, notebook_certificate, tables
from meridian.figures.values import Figure
from meridian.finding import Drawing, Finding
from meridian.run_folder import CERTIFICATE, RunFolder
from results_io import UserError

HEAD_COLUMNS = {  # columns of the table of heads, and their names here
    **{"02_denoising": "denoising", "02_noising": "noising", "03_attribution": "attribution"},
    "21_effect": "knockout",
}


class FinishedRun(RunFolder):
    """The results that one run left in `path`, as numbers, tables and figures. A notebook shows it as its certificate."""

    @property
    def blocking(self) -> pd.DataFrame:
        """The gates that block the next tier: metric, verdict, reason, what it needs, split."""
        return notebook_certificate.blocking(self.certificate)

    @property
    def claims_tried(self) -> ClaimsTried:
        """The claims about this task on these weights in the same folder of results, with the tier of each.

        UserError if no parent folder has a summary.json, which every run writes at its end.
        """
        above = next((folder for folder in self.path.resolve().parents if (folder / "summary.json").is_file()), None)
        if above is None:
            raise UserError(f"no folder above {self.path} has a summary.json; repeat the run that it is of")
        return claims_tried.about(self.certificate["subject"], summary.certificates_in(above)[0].values())

    @property
    def verdicts(self) -> pd.DataFrame:
        """One row for each calibration: published value and verdict, estimate with 90 % interval, verdict, why."""
        return notebook_certificate.frame(self._calibrations)

    @property
    def heads(self) -> pd.DataFrame:
        """One row for each head of the model ("L2H1"): role, and mean effect by the four methods that change only this head.

        `tables["heads"]` has every measurement, with the ends of its interval.
        """
        frame = tables.head_table(self).frame
        names = {name: said for name, said in HEAD_COLUMNS.items() if name in frame}
        shown = pd.DataFrame({"role": frame["role"]} | {said: frame[name] for name, said in names.items()})
        return shown.set_axis([f"L{layer}H{head}" for layer, head in zip(frame["layer"], frame["head"], strict=True)])

    @property
    def mlps(self) -> pd.DataFrame:
        """One row for each MLP of the model ("M3"): role if claimed, and mean attribution (03), in nats, if measured."""
        written, layers = (self.data("03") or {}).get("mlp"), range(self.evidence.n_layers)
        scored = [split == "evaluation" for split in self.require("01")["data"]["split"]]
        means = None if written is None else np.asarray(written, dtype=float)[scored].mean(axis=0)
        roles = {f"M{node.layer}": name for name, node in self._claimed_mlps}
        return pd.DataFrame(
            {"role": [roles.get(f"M{layer}") for layer in layers], "attribution": means},
            index=[f"M{layer}" for layer in layers],
        )

    @property
    def tables(self) -> Mapping[str, pd.DataFrame]:
        """Every table that `python run.py figures` writes, by name and with every column."""
        return {name: table.frame for name, table in tables.of(self).items()}

    @property
    def carriers(self) -> Finding:
        """For a run on failures, how much of the failures each head carries. UserError for any other run."""
        return failure_carriers.of(self)

    @cached_property
    def figures(self) -> Mapping[str, Figure]:
        """Every figure that the results allow, by name, in the order of the report."""
        return figures.of(self)

    def figure(self, name: str) -> Drawing:
        """The figure of this name, ready to be shown. UserError if the results have none."""
        if name not in self.figures:
            raise UserError(f"{self.path} has no figure {name!r}; use one of {', '.join(self.figures)}")
        return Drawing(self.figures[name])

    def write_graph(self, path: str | Path, tool: str = "EAP-IG", method: str = "eap_ig_inputs") -> None:
        """Write the claim as a graph for `tool`, with 08's scores of every edge by `method`.

        `tool`: "EAP-IG" (which MIB's circuit track reads too), "auto-circuit" or "circuit-tracer". UserError if the run has no
        edge scores, or if the tool's format cannot express the claim.
        """
        from circuits import graphs

        graphs.write(
            graphs.measured.of_results(self.circuit, self.require("08")["data"]["edges"], method), Path(path), tool
        )

    def __repr__(self) -> str:
        """Tier, what blocks the next one, and the folder."""
        if not (self.path / CERTIFICATE).is_file():
            return f"No certificate: not all calibrations were asked for\n{self.path}"
        gates = self.blocking.to_dict("records")
        blocked = ", ".join(f"{gate['metric']} ({gate['verdict']})" for gate in gates)
        lines = [f"Blocks tier {gates[0]['tier']}: {blocked}"] if gates else []
        return "\n".join([tier_text(self.certificate), *lines, str(self.path)])

    def _repr_html_(self) -> str:
        if not (self.path / CERTIFICATE).is_file():
            return "<p>No certificate: not all calibrations were asked for</p>" + notebook_certificate.html_table(
                self._calibrations
            )
        return notebook_certificate.html(self.certificate)

    @property
    def _claimed_mlps(self) -> Iterator[tuple[str, ClaimedNode]]:
        for role, spec in self.circuit["roles"].items():
            nodes = map(ClaimedNode.read, claimed_names(spec))
            yield from ((role, node) for node in nodes if node.kind == "mlp")

    @property
    def _calibrations(self) -> Sequence[CertificateRow]:
        """The certificate's rows; without a certificate, the rows of the calibrations that were run."""
        if (self.path / CERTIFICATE).is_file():
            return calibrations_of(self.certificate)
        documents = {name: self.document(module.NUMBER) for name, module in CALIBRATIONS.items()}
        return certificate.rows({name: document for name, document in documents.items() if document})
