"""A finished run in a notebook: its folder of results, with verdicts, heads and figures as attributes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

import pandas as pd

from calibrations import certificate, claims_tried, summary
from calibrations.certificate_row import CertificateRow, calibrations_of
from calibrations.claims_tried import ClaimsTried
from calibrations.registry import CALIBRATIONS
from meridian import failure_carriers, figures, notebook_certificate, tables
from meridian.figures.values import Figure
from meridian.finding import Drawing, Finding
from meridian.run_folder import CERTIFICATE, RunFolder
from results_io import UserError


class FinishedRun(RunFolder):
    """What one run left in `path`, as numbers and as what shows them. A notebook shows it as its certificate."""

    @property
    def blocking(self) -> pd.DataFrame:
        """Gates that keep the next tier from being reached: metric, verdict, reason, what it needs, split."""
        return notebook_certificate.blocking(self.certificate)

    @property
    def claims_tried(self) -> ClaimsTried:
        """The claims about this task on these weights in the same folder of results, with the tier of each.

        UserError if no folder above has a summary.json, which every run ends with.
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
        """One row for each head of the model ("L2H1"): role, and its mean in every measurement with the interval's ends."""
        frame = tables.head_table(self).frame
        return frame.set_axis([f"L{layer}H{head}" for layer, head in zip(frame["layer"], frame["head"], strict=True)])

    @property
    def carriers(self) -> Finding:
        """How much of the failures each head carries, of a run on failures. UserError for any other run."""
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
        """Write the claim, with 08's scores of every edge by `method`, as a graph for "EAP-IG" (MIB's circuit track reads it
        too), "auto-circuit" or "circuit-tracer".

        UserError if the run has no scores of edges, or `tool` cannot say what is claimed.
        """
        from circuits import graphs

        graphs.write(
            graphs.measured.of_results(self.circuit, self.require("08")["data"]["edges"], method), Path(path), tool
        )

    def _repr_html_(self) -> str:
        if not (self.path / CERTIFICATE).is_file():
            return "<p>No certificate: not all calibrations were asked for</p>" + notebook_certificate.html_table(
                self._calibrations
            )
        return notebook_certificate.html(self.certificate)

    @property
    def _calibrations(self) -> Sequence[CertificateRow]:
        """The certificate's rows, or without a certificate those of the calibrations that were run."""
        if (self.path / CERTIFICATE).is_file():
            return calibrations_of(self.certificate)
        documents = {name: self.document(module.NUMBER) for name, module in CALIBRATIONS.items()}
        return certificate.rows({name: document for name, document in documents.items() if document})
