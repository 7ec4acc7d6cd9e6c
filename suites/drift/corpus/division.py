"""Division: one list of prompts becomes a public corpus and a secret held-out file, by HMAC(key, id) < share.

The key is drawn at random and stays in the held-out file with a salt for each prompt. Nobody chooses which prompts are held out;
with the key, anybody can check later that nobody did. A list that grew is divided again by the same key, so that each prompt
stays on its side.
"""

from __future__ import annotations

import secrets
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

import results_io
from results_io import UserError
from suites import lock
from suites.drift import corpus
from suites.drift.corpus import HELD_OUT_LEAST, HELD_OUT_SHARE, Corpus

TRIES = 200_000  # keys that are drawn until each axis has enough on either side: six axes of 20 take 34,000 on average
ENOUGH = f"at least {HELD_OUT_LEAST} prompts an axis on either side, {HELD_OUT_SHARE[0]:.0%} to {HELD_OUT_SHARE[1]:.0%} of all"
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Division:
    """The two parts of a list: rows of prompts.yaml. `key`: in hex."""

    key: str
    share: float
    public: Sequence[Row]
    held_out: Sequence[Row]


def divide(source: Path, public: Path, secret: Path, share: float) -> Division:
    """Divide the prompts of the folder `source` into the corpus `public`, with its lock, and the file `secret`.

    If `secret` is there, its key, share and salts stay, and what it holds beside the list is kept. UserError, before anything is
    written, where a part would be too small, for another share than before, and for a place that is not secret.
    """
    require_secret(secret, source, public)
    whole = corpus.declared(source)
    rows = corpus.content_of(source / corpus.FILE)["prompts"]
    known = corpus.content_of(secret) if secret.is_file() else {"prompts": []}
    if known.get("share", share) != share:
        raise UserError(
            f"{secret} holds out a share of {known['share']}, not {share}; another share would publish what is secret: give "
            f"drift.held_out_share={known['share']}"
        )
    made = _divided(rows, whole, known, share, secret)
    _write(made, source, public, secret)
    return made


def retire(secret: Path, key: str) -> int:
    """Mark a prompt of a held-out file as no longer asked; returns how many are still asked on its axis.

    UserError for a prompt that is not there or retired, and if fewer than 10 would be left on its axis.
    """
    data, gone = corpus.content_of(secret), corpus.retired(secret)
    axes = {prompt.key: prompt.axis for prompt in corpus.read_held_out(secret)}
    if key not in axes or key in gone:
        raise UserError(f"{key} is no prompt that {secret} still asks; use one of {corpus.some(axes.keys() - gone)}")
    left = sum(axis == axes[key] and other not in gone for other, axis in axes.items()) - 1
    if left < HELD_OUT_LEAST:
        raise UserError(
            f"without {key}, {left} held-out prompts were left on {axes[key]}; expected at least {HELD_OUT_LEAST}: add one first"
        )
    rows = [{**row, "retired": True} if corpus.key_of(row) == key else row for row in data["prompts"]]
    write_secret(secret, {**data, "prompts": rows})
    return left


def require_secret(secret: Path, *folders: Path) -> None:
    """UserError for a held-out file in one of `folders`, or where a Git repository would track it."""
    place = secret.resolve()
    for folder in folders:
        if place.is_relative_to(folder.resolve()) or folder.resolve() == place:
            raise UserError(f"drift.held_out={secret} is in {folder}, which is to be public; give a file elsewhere")
    root = next((one for one in place.parents if (one / ".git").exists()), None)
    if root is not None and not _ignored(place, root):
        raise UserError(
            f"drift.held_out={secret} is in a Git repository, which would publish it; give a file elsewhere"
        )


def _ignored(place: Path, root: Path) -> bool:
    try:
        return subprocess.run(["git", "-C", str(root), "check-ignore", "-q", str(place)], check=False).returncode == 0
    except OSError:  # without git nothing is known to be ignored
        return False


def _divided(rows: Sequence[Row], whole: Corpus, known: Row, share: float, secret: Path) -> Division:
    """The division by the known key, or by the first random one that leaves enough on either side."""
    if "key" not in known and known["prompts"]:
        raise UserError(
            f"{secret} has no key, so it was written by hand and no list is divided by it; give another file"
        )
    stored = {corpus.key_of(row): row for row in known["prompts"]}
    gone = {name for name, row in stored.items() if row.get("retired") is True}
    asked = {axis: [one.id for one in whole.prompts if one.axis == axis and one.key not in gone] for axis in whole.axes}
    keys = [known["key"]] if "key" in known else (secrets.token_hex(32) for _ in range(TRIES))
    why = ""
    for key in keys:
        if not (why := _lacks(asked, _bytes(key, secret), share)):
            held = [row for row in rows if corpus.kept_out(_bytes(key, secret), lock.normalised(row["id"]), share)]
            names = {corpus.key_of(row) for row in held}
            salted = [{**row, "salt": secrets.token_hex(32), **_secret_of(row, stored, secret)} for row in held]
            rest = [row for name, row in stored.items() if name not in names]
            return Division(key, share, [row for row in rows if corpus.key_of(row) not in names], [*salted, *rest])
    raise UserError(f"{why}; expected {ENOUGH}: add prompts, or change drift.held_out_share")


def _bytes(key: Any, secret: Path) -> bytes:
    try:
        return bytes.fromhex(key)
    except (TypeError, ValueError) as error:
        raise UserError(f"the key of {secret} is no text of hex digits; restore the file from a copy") from error


def _secret_of(row: Row, stored: Mapping[str, Row], secret: Path) -> Row:
    """Salt and retirement that a prompt has already. UserError if it was changed since."""
    known = stored.get(key := corpus.key_of(row))
    if known is None:
        return {}
    if {name: value for name, value in known.items() if name not in corpus.OF_SECRET} != dict(row):
        raise UserError(f"{secret} holds {key} with another text; a changed prompt needs a new version with supersedes")
    return {name: known[name] for name in corpus.OF_SECRET if name in known}


def _lacks(asked: Mapping[str, Sequence[str]], key: bytes, share: float) -> str:
    """Which part would be too small, found at the first axis where one is; empty if none is. `asked`: ids by axis."""
    held = 0
    for axis, ids in asked.items():
        count = sum(corpus.kept_out(key, one, share) for one in ids)
        if (least := min(count, len(ids) - count)) < HELD_OUT_LEAST:
            return f"of {len(ids)} prompts on {axis} one part would have {least}"
        held += count
    part = held / sum(map(len, asked.values()))
    return "" if HELD_OUT_SHARE[0] <= part <= HELD_OUT_SHARE[1] else f"{part:.0%} of all prompts would be held out"


def _write(made: Division, source: Path, public: Path, secret: Path) -> None:
    """The secret file first, then the public corpus; a public folder that holds anything else is refused before."""
    head = {name: value for name, value in corpus.content_of(source / corpus.FILE).items() if name != "prompts"}
    text = yaml.safe_dump({**head, "prompts": [dict(row) for row in made.public]}, sort_keys=False, allow_unicode=True)
    if (lock_file := public / corpus.LOCK).is_file():
        known = corpus.declared(public)
        left = {prompt.key: prompt.hash for prompt in known.prompts}
        now = {prompt.key: prompt.hash for prompt in corpus.declared(source).prompts}
        names = {corpus.key_of(row) for row in made.public}
        if lost := sorted(key for key in left if key not in names or now[key] != left[key]):
            raise UserError(
                f"{lock_file} has {lost[0]}, which is not public by this division; give another folder as out="
            )
    elif public.exists() and any(public.iterdir()):
        raise UserError(f"out={public} holds other files; give an empty folder, or one that does not exist")
    write_secret(secret, {"key": made.key, "share": made.share, "prompts": [dict(row) for row in made.held_out]})
    results_io.write_text(public / corpus.FILE, text)
    results_io.write_text(public / corpus.LOCK, corpus.freeze(public))


def write_secret(path: Path, data: Row) -> None:
    """Replace a file by YAML that its owner alone may read, in one step."""
    results_io.write_text(path, yaml.safe_dump(dict(data), sort_keys=False, allow_unicode=True), mode=0o600)
