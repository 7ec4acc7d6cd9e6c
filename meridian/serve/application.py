"""The pages of `run.py serve`: for this machine alone, below a token in the address, and without a request to anywhere else."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route

from circuits.circuit import PRIMARY_RECIPES
from meridian import report, run_comparison
from meridian.figures import geometry, static
from meridian.figures.values import Figure
from meridian.serve.shelf import Shelf
from meridian.serve.trial import EVERY, KINDS, Question, Trials
from results_io import UserError

HERE = Path(__file__).parent
HOSTS = ["127.0.0.1", "localhost"]  # another name in a request is another site's page that points here
STRICT = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; form-action 'self'"
INLINE = "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:"  # a report holds its own scripts; nothing from elsewhere
NUMBER = "{:.3f}".format


@dataclass(frozen=True)
class Pages:
    """The handlers of every address."""

    shelf: Shelf
    trials: Trials
    templates: jinja2.Environment

    def home(self, request: Request) -> Response:
        """Runs, what can be compared and asked, and links to drift, suites and geometry."""
        shelf = self.shelf
        return self._page(
            "home",
            runs=shelf.runs(),
            sites=shelf.sites(),
            suites=shelf.suites(),
            geometry=shelf.geometry(),
            recipes=PRIMARY_RECIPES,
            kinds=KINDS,
            every=EVERY,
        )

    def report(self, request: Request) -> Response:
        """report.html of a run, drawn if it is not there or no longer that of its results, or a result that it links to."""
        name, _, file = request.path_params["name"].rpartition("/")
        run = self.shelf.run(name)
        if file == report.NAME:
            text = report.write(run).read_text(encoding="utf-8")
            return HTMLResponse(text, headers={"Content-Security-Policy": INLINE})
        results = {path.name: path for path in run.path.glob("*.json")}
        if file not in results:
            raise UserError(f"there is no {file!r} in the run {name}; open its {report.NAME}")
        return FileResponse(results[file], headers={"Content-Security-Policy": STRICT})

    def compare(self, request: Request) -> Response:
        """Two runs side by side."""
        a, b = (self.shelf.run(request.query_params.get(side, "")) for side in ("a", "b"))
        found = run_comparison.compare(a.path, b.path)
        changed = [one for one in found.verdicts if one["change"]]
        return self._page(
            "compare",
            found=found,
            names=[request.query_params[side] for side in ("a", "b")],
            table=_html(found.table),
            changed=changed,
            drawn=_drawn(found.figures()),
        )

    def suites(self, request: Request) -> Response:
        """Failure rates and the worst failures of a model's suites."""
        name = request.path_params["name"]
        folder = self.shelf.suite_folder(name)
        rates = _html(folder.rates)
        figures = [folder.figure.figure] if len(folder.rates) else []
        tables = [("Failure rates", rates)]
        return self._page("shown", title=f"Suites: {name}", tables=tables, drawn=_drawn(figures), depth=_depth(name))

    def geometry(self, request: Request) -> Response:
        """The maps and tables of a model's geometry."""
        name = request.path_params["name"]
        if name not in self.shelf.geometry():
            raise UserError(f"there is no geometry {name!r} here; run geometry=all")
        drawn = _drawn(geometry.build(self.shelf.results / name))
        return self._page("shown", title=f"Geometry: {name}", tables=[], drawn=drawn, depth=_depth(name))

    def site(self, request: Request) -> Response:
        """A file of a drift site."""
        path = self.shelf.site_file(request.path_params["series"], request.path_params["name"])
        return FileResponse(path, headers={"Content-Security-Policy": INLINE})

    async def ask(self, request: Request) -> Response:
        """One question; lines of JSON: {"doing"}, {"done", "total"}, and at the end {"answer"} or {"refused"}."""
        try:
            sent = json.loads(await request.body())
        except ValueError as error:  # neither JSON nor text
            raise UserError("a question is a JSON object; send one") from error
        question = Question.read(sent)
        run = self.shelf.run(question.run)
        return StreamingResponse(self._told(run, question), media_type="application/x-ndjson")

    async def _told(self, run: Any, question: Question) -> AsyncIterator[str]:
        events: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def tell(event: Mapping[str, Any] | None) -> None:
            loop.call_soon_threadsafe(events.put_nowait, None if event is None else dict(event))

        def work() -> None:
            try:
                tell({"answer": self.trials.ask(run, question, tell)})
            except UserError as refused:
                tell({"refused": str(refused)})
            finally:
                tell(None)

        working = asyncio.create_task(asyncio.to_thread(work))
        while (event := await events.get()) is not None:
            yield json.dumps(event) + "\n"
        await working

    def style(self, request: Request) -> Response:
        """The report's look, and what is these pages' alone."""
        own = (HERE / "serve.css").read_text(encoding="utf-8")
        return Response(report.style() + own, media_type="text/css")

    def script(self, request: Request) -> Response:
        return FileResponse(HERE / "serve.js", media_type="text/javascript")

    def _page(self, name: str, **values: Any) -> Response:
        text = self.templates.get_template(f"{name}.html.j2").render(results=self.shelf.results.name, **values)
        return HTMLResponse(text, headers={"Content-Security-Policy": STRICT})


def application(results: Path, token: str, trials: Trials | None = None) -> Starlette:
    """The pages about `results`, all of them below /<token>/; any other address is not found, any other host refused."""
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    pages = Pages(Shelf(results), trials or Trials(), templates)
    routes = [
        Route("/", pages.home),
        Route("/report/{name:path}", pages.report),
        Route("/compare", pages.compare),
        Route("/suites/{name:path}", pages.suites),
        Route("/geometry/{name:path}", pages.geometry),
        Route("/drift/{series}/{name:path}", pages.site),
        Route("/ask", pages.ask, methods=["POST"]),
        Route("/serve.css", pages.style),
        Route("/serve.js", pages.script),
    ]
    return Starlette(
        routes=[Mount(f"/{token}", routes=routes)],
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=HOSTS)],
        exception_handlers={UserError: _refused},
    )


async def _refused(request: Request, error: Exception) -> Response:
    return JSONResponse({"refused": str(error)}, status_code=404 if request.method == "GET" else 400)


def _html(frame: pd.DataFrame) -> str:
    """The frame as a table without styles of its own, which the page's policy refuses."""
    return (
        frame.rename_axis(index=None)
        .to_html(float_format=NUMBER, border=0, na_rep="-")
        .replace(' style="text-align: right;"', "")
    )


def _depth(name: str) -> int:
    """How many folders a page about `name` lies below the first page."""
    return 1 + name.count("/")


def _drawn(figures: Any) -> list[tuple[Figure, str]]:
    """Each figure with its picture as an address that holds it."""
    return [(one, f"data:image/svg+xml;base64,{_picture(one)}") for one in figures]


def _picture(figure: Figure) -> str:
    return base64.b64encode(static.render(static.draw(figure), "svg")).decode()
