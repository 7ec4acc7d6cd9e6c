"""From an output to a program: a fenced block, the output itself, or the continuation of the prompt."""

from __future__ import annotations

import re

FENCED = re.compile(r"^[ \t]*```[^\n`]*\n(.*?)(?:^[ \t]*```|\Z)", re.DOTALL | re.MULTILINE)


def of_output(prompt: str, text: str, entry: str) -> str:
    """The program of an output: the last fenced block that defines `entry`, else the output if it does, else prompt + output.

    The last case is for a base model, which continues the function header.
    """
    defines = re.compile(rf"^(?:async )?def {re.escape(entry)}\b|^{re.escape(entry)}\s*=", re.MULTILINE)
    blocks = FENCED.findall(text)
    for block in reversed(blocks):
        if defines.search(block):
            return block
    if defines.search(text):
        return text
    return prompt + (blocks[-1] if blocks else text)
