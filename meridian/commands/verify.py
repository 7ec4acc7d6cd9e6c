"""`run.py verify`: is a finished run still what its certificate was made from?"""

from __future__ import annotations

from pathlib import Path

import shown_text
from meridian.context import RunContext
from results_io import UserError

BROKEN = 1  # exit code


def command(context: RunContext) -> int:
    """Follow the chain from the certificate in `from` to the weights and print each check; exit code 1 at the first break.

    UserError for anything asked for that cannot be checked.
    """
    from meridian import remeasurement
    from meridian.run_folder import certified
    from meridian.verification import Break, Verification, require_read

    settings, say = context.settings, context.reporter.say
    if not settings["from"]:
        raise UserError("verify needs from=; give the folder of a finished run, for example results/pocket/ioi")
    remeasurement.check(settings["verify"])
    require_read(context.typed)
    found = Verification(certified(Path(str(settings["from"]))), context)
    try:
        for sentence in found.walk():
            say(sentence)
        if settings["verify"]["remeasure"] is not None:
            say(remeasurement.remeasure(found, settings["verify"]))
    except Break as broken:
        say(f"Broken: {shown_text.visible(str(broken), kept='')}")  # on one line, whatever stands in the certificate
        return BROKEN
    but = f" in what was checked; not checked: {'; '.join(found.unchecked)}" if found.unchecked else ""
    say(f"No break{but}. This finds edits; it does not find a forger who computes the digests anew")
    return 0
