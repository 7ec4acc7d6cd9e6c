"""`run.py serve`: a web page about a folder of results, reachable from this machine only."""

from __future__ import annotations

import secrets
import socket

from meridian.context import RunContext
from results_io import UserError

HOST = "127.0.0.1"


def command(context: RunContext) -> None:
    """Serve the results until stopped. UserError if the folder does not exist or the port is taken."""
    import uvicorn

    from meridian.serve.application import application

    if not context.results.is_dir():
        raise UserError(
            f"results={context.results} is not a folder; give one that runs wrote to, for example results=results"
        )
    token, listening = secrets.token_urlsafe(16), opened(int(context.settings["serve"]["port"]))
    port = listening.getsockname()[1]
    server = uvicorn.Server(
        uvicorn.Config(application(context.results, token), log_level="warning", access_log=False, lifespan="off")
    )
    try:
        context.reporter.say(f"http://{HOST}:{port}/{token}/ shows {context.results}; stop it with Ctrl+C")
        server.run(sockets=[listening])
    except KeyboardInterrupt:  # how it is stopped
        context.reporter.say("Stopped serving.")


def opened(port: int) -> socket.socket:
    """A socket that listens on the loopback address. UserError if the port is taken."""
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((HOST, port))
        listening.listen()  # so that requests wait, rather than fail, until the server is up
    except OSError as error:
        listening.close()
        raise UserError(
            f"serve.port={port} cannot be used ({error.strerror}); use another, or 0 for a free one"
        ) from error
    return listening
