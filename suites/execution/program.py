"""From an output to a program: a fenced block, the output itself, or the continuation of the prompt."""

from __future__ import annotations

import re

FENCED = re.compile(r"^[ \t]*```[^\n`]*\n(.*?)(?:^[ \t]*```|\Z)", re.DOTALL | re.MULTILINE)
AFTERWARDS = re.compile(r"^(?=def |class |if __name__)", re.MULTILINE)


def of_output(prompt: str, text: str, entry: str) -> str:
    """The program of an output: the last fenced block that defines `entry`, else the output if it does, else prompt + output.

    The last case is for a base model, which continues the function header. What it writes after the function is left out: the
    next function, class or main block.
    """
    defines = re.compile(rf"^(?:async )?def {re.escape(entry)}\b|^{re.escape(entry)}\s*=", re.MULTILINE)
    blocks = FENCED.findall(text)
    for block in reversed(blocks):
        if defines.search(block):
            return block
    if defines.search(text):
        return text
    return prompt + (blocks[-1] if blocks else AFTERWARDS.split(text, maxsplit=1)[0])
