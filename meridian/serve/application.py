"""The pages of `run.py serve`: for this machine only, below a token in the address, and with no requests to other hosts."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import (
    FileResponse,
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Mount, Route

from calibrations.number_format import rounded
from circuits.circuit import PRIMARY_RECIPES
from meridian import ranges, report, run_comparison
from meridian.figures import static
from meridian.figures.values import Figure, HeatMap
from meridian.report import folder_page, pages
from meridian.report.certificate_section import gate_name
from meridian.serve.shelf import Shelf
from meridian.serve.trial import DIRECTIONS, EVERY, KINDS, TrialQuestion, Trials
from results_io import UserError

HERE = Path(__file__).parent
HOSTS = ["127.0.0.1", "localhost"]  # a request with another name comes from another site that points here
STRICT = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; form-action 'self'"
INLINE = "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:"  # a report has only inline scripts
DECIMALS = 8  # of a difference, beyond which there is only rounding
LONG_NOTE = 200  # characters; a longer note is folded
LOG = logging.getLogger("uvicorn.error")  # the server's own messages go there
NO_PAGE = "there is no page at this address; open a link of the first page"
MOST_SENT = 1 << 20  # bytes of a question; more than its texts may have
FAILED = (
    "the question failed, which is a fault of Meridian; the terminal of run.py serve says where, so report it with that"
)


@dataclass(frozen=True)
class Pages:
    """The handlers of every address."""

    shelf: Shelf
    trials: Trials
    token: str
    templates: jinja2.Environment

    def home(self, request: Request) -> Response:
        """Runs, what can be compared and asked, and links to drift sites and to pages of other folders."""
        shelf = self.shelf
        return self._page(
            "home",
            runs=shelf.runs(),
            sites=shelf.sites(),
            pages=shelf.pages(),
            recipes=PRIMARY_RECIPES,
            kinds=KINDS,
            every=EVERY,
            directions=DIRECTIONS,
        )

    def report(self, request: Request) -> Response:
        """report.html of a run, drawn again if it is missing or out of date, or a result that the report links to."""
        name, _, file = request.path_params["name"].rpartition("/")
        if file.endswith(".json") and name in {one for names in self.shelf.pages().values() for one in names}:
            return self._result(
                self.shelf.results / name, file, name
            )  # a result of suites beside a run, which the run's report links to
        run = self.shelf.run(name)
        if file == report.NAME:
            text = report.write(run).read_text(encoding="utf-8")
            return HTMLResponse(text, headers={"Content-Security-Policy": INLINE})
        results = self.shelf.result_files(run.path)
        if file not in results:
            raise UserError(f"there is no {ranges.shown(file)!r} in the run {name}; open its {report.NAME}")
        return FileResponse(results[file], headers={"Content-Security-Policy": STRICT})

    def compare(self, request: Request) -> Response:
        """Two runs side by side."""
        a, b = (self.shelf.run(request.query_params.get(side, "")) for side in ("a", "b"))
        found = run_comparison.compare(a.path, b.path)
        titles = {row.id: row.title for run in (a, b) for row in run.rows}
        changed = [one | {"name": gate_name(one["metric"], titles)} for one in found.verdicts if one["change"]]
        return self._page(
            "compare",
            found=found,
            names=[request.query_params[side] for side in ("a", "b")],
            table=_html(found.table),
            changed=changed,
            long_note=LONG_NOTE,
            drawn=_drawn(found.figures(file="")),
        )

    def folder(self, request: Request) -> Response:
        """The page of a folder of suites, geometry, judging or drift, drawn from its current results, or one of the results."""
        name, file = _parted(request.path_params["name"], self.shelf)
        folder = self.shelf.page_folder(name)
        if file == report.NAME:
            text = folder_page.render(pages.of(folder, name))
            return HTMLResponse(text, headers={"Content-Security-Policy": INLINE})
        return self._result(folder, file, name)

    def _result(self, folder: Path, file: str, name: str) -> Response:
        """A result in a folder or below it. UserError if there is none with this name."""
        results = self.shelf.result_files(folder, subfolders=True)
        if file not in results:
            raise UserError(f"there is no {ranges.shown(file)!r} in {name}; open its {report.NAME}")
        return FileResponse(results[file], headers={"Content-Security-Policy": STRICT})

    def site(self, request: Request) -> Response:
        """A file of a drift site."""
        path = self.shelf.site_file(request.path_params["series"], request.path_params["name"])
        return FileResponse(path, headers={"Content-Security-Policy": INLINE})

    async def ask(self, request: Request) -> Response:
        """Answer one question by lines of JSON: {"doing"}, {"done", "total"}, and at the end {"answer"} or {"refused"}."""
        try:
            sent = json.loads(await _body(request))
        except UserError:
            raise
        except (ValueError, RecursionError) as error:  # not JSON, not text, or brackets nested too deeply
            raise UserError("a question is a JSON object; send one") from error
        question = TrialQuestion.read(sent)
        run = self.shelf.run(question.run)
        return StreamingResponse(self._told(run, question), media_type="application/x-ndjson")

    async def _told(self, run: Any, question: TrialQuestion) -> AsyncIterator[str]:
        events: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def tell(event: Mapping[str, Any] | None) -> None:
            loop.call_soon_threadsafe(events.put_nowait, None if event is None else dict(event))

        def work() -> None:
            try:
                tell({"answer": self.trials.ask(run, question, tell)})
            except UserError as refused:
                tell({"refused": str(refused)})
            except Exception:
                LOG.exception("a question failed")  # if it were raised, the answer would end before its sentence
                tell({"refused": FAILED})
            finally:
                tell(None)

        working = asyncio.create_task(asyncio.to_thread(work))
        while (event := await events.get()) is not None:
            yield json.dumps(event) + "\n"
        await working

    def style(self, request: Request) -> Response:
        """The report's CSS, and the CSS of these pages."""
        own = (HERE / "serve.css").read_text(encoding="utf-8")
        return Response(report.style() + own, media_type="text/css")

    def script(self, request: Request) -> Response:
        return FileResponse(HERE / "serve.js", media_type="text/javascript")

    async def refused(self, request: Request, error: Exception) -> Response:
        """The sentence of a UserError: a page for somebody who reads it in a browser, JSON for a script.

        Without the token, an address is not found and nothing is said about this server.
        """
        status = 404 if request.method == "GET" else 400
        if isinstance(error, HTTPException):
            status, inside = error.status_code, request.scope["path"].startswith(f"/{self.token}/")
            if status != 404 or not inside:
                return PlainTextResponse(error.detail, status_code=status, headers=error.headers)
            error = UserError(NO_PAGE)
        if "text/html" not in request.headers.get("accept", ""):
            return JSONResponse({"refused": str(error)}, status_code=status)
        return self._page("refused", status, reason=str(error), root=f"/{self.token}/")

    def _page(self, name: str, status: int = 200, **values: Any) -> Response:
        text = self.templates.get_template(f"{name}.html.j2").render(results=self.shelf.results.name, **values)
        return HTMLResponse(text, status_code=status, headers={"Content-Security-Policy": STRICT})


def application(results: Path, token: str, trials: Trials | None = None) -> Starlette:
    """The pages about `results`, all below /<token>/. Any other address is not found; any other host name is refused."""
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    shown = Pages(Shelf(results), trials or Trials(), token, templates)
    routes = [
        Route("/", shown.home),
        Route("/report/{name:path}", shown.report),
        Route("/compare", shown.compare),
        Route("/folder/{name:path}", shown.folder),
        Route("/drift/{series}/{name:path}", shown.site),
        Route("/ask", shown.ask, methods=["POST"]),
        Route("/serve.css", shown.style),
        Route("/serve.js", shown.script),
    ]
    return Starlette(
        routes=[Mount(f"/{token}", routes=routes)],
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=HOSTS)],
        exception_handlers={UserError: shown.refused, HTTPException: shown.refused},
    )


async def _body(request: Request) -> bytes:
    """The body of the request. UserError as soon as it is longer than a question can be."""
    sent = bytearray()
    async for part in request.stream():
        sent += part
        if len(sent) > MOST_SENT:
            raise UserError(f"a question has at most {MOST_SENT} bytes; shorten it")
    return bytes(sent)


def _number(value: float) -> str:
    """Three decimals, never -0.000; 0 for what differs from it only by rounding."""
    return f"{rounded(value, 3):.3f}" if round(value, DECIMALS) else "0"


def _html(frame: pd.DataFrame) -> str:
    """The frame as a table without inline styles, which the page's security policy forbids."""
    return (
        frame.rename_axis(index=None)
        .to_html(float_format=_number, border=0, na_rep="-")
        .replace(' style="text-align: right;"', "")
    )


def _parted(path: str, shelf: Shelf) -> tuple[str, str]:
    """(folder, file) of an address such as judging/demo-fair/182_judge_agreement.json; the folder is a listed one."""
    listed = [name for names in shelf.pages().values() for name in names]
    name = max((one for one in listed if path.startswith(f"{one}/")), key=len, default=path.rpartition("/")[0])
    return name, path.removeprefix(f"{name}/")


def _drawn(figures: Any) -> list[tuple[Figure, str]]:
    """Each figure with its picture as a data URL, but no map on which nothing differs."""
    return [(one, f"data:image/svg+xml;base64,{_picture(one)}") for one in figures if not _is_blank(one)]


def _is_blank(figure: Figure) -> bool:
    return isinstance(figure, HeatMap) and not any(value for row in figure.values for value in row)


def _picture(figure: Figure) -> str:
    return base64.b64encode(static.render(static.draw(figure), "svg")).decode()
