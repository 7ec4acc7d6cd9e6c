"""What runs inside the sandbox: it loads the candidate and calls it, as it is told line by line. It knows no expected value.

`python -I -S -c <this text> <descriptor of the replies> <limits as JSON>`. Requests come on standard input. Every request has a
nonce that its reply repeats, so that nothing written ahead of a request counts. A reply is what the candidate answered, and no
verdict: the comparison is made by whoever sent the request. Standard library alone, and nothing of this project.
"""

import json
import os
import resource
import sys


def main() -> None:
    """Answer requests until there are no more."""
    replies, limits = os.dup(int(sys.argv[1])), json.loads(sys.argv[2])
    requests = os.fdopen(os.dup(0), "rb")
    for name, most in limits.items():
        resource.setrlimit(getattr(resource, name), (most, most))
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):  # what the candidate prints or reads reaches nobody
        os.dup2(nowhere, descriptor)
    found = {}
    for line in requests:
        request = json.loads(line)
        reply = {"nonce": request["nonce"]}
        try:
            reply["value"] = answer(request, found)
        except BaseException as error:  # SystemExit and the like are an answer, too
            reply = {**reply, "raised": type(error).__name__, "why": shown(error)}
        data = written(reply) + b"\n"
        while data:
            data = data[os.write(replies, data) :]


def answer(request: dict, found: dict) -> object:
    """What one request asks for: nothing, that a program is loaded, or that its entry is called."""
    if request["do"] == "load":
        names = {"__name__": "candidate"}
        exec(compile(request["program"], "<candidate>", "exec"), names)
        found["entry"] = names[request["entry"]]
        return callable(found["entry"])
    if request["do"] == "call":
        return found["entry"](*request["args"])
    return sys.version.split()[0]


def written(reply: dict) -> bytes:
    """A reply as JSON; a value that JSON does not hold, or that has half a character, is none."""
    try:
        return json.dumps(reply, allow_nan=False, ensure_ascii=False).encode()
    except BaseException as error:
        return json.dumps({"nonce": reply["nonce"], "raised": "NoAnswer", "why": "no JSON: " + shown(error)}).encode()


def shown(error: BaseException) -> str:
    """The message of an error; half a character is written as its escape."""
    try:
        return str(error)[:200].encode(errors="backslashreplace").decode()
    except BaseException:
        return ""


main()
