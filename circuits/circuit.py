"""Node, Role, Pathway and Circuit: what is claimed about a model, as values."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

import yaml

import results_io
from results_io import UserError

PRIMARY_RECIPES = ("zero", "zero_raw", "mean", "mean_pooled", "resample", "noise")
Kind = Literal["head", "mlp", "attention", "residual", "embedding"]
HEAD_NAME = re.compile(r"L(\d+)H(\d+)")
INPUT, OUTPUT = "embedding", "logits"  # ends of pathways that are no roles
PROJECTION_NAMES = ("q", "k", "v")
STEPS = {1: "early", 2: "middle", 3: "between middle and late", 4: "late: it writes the answer"}  # ordinals of roles


@dataclass(frozen=True, order=True)
class Node:
    """A place in the model: an attention head, or a whole MLP output, attention output, residual stream or embedding.

    `index` is the head's index within its layer; -1 for every other kind. "residual" is the stream entering the layer.
    """

    kind: Kind
    layer: int
    index: int = -1

    def __str__(self) -> str:
        return f"L{self.layer}H{self.index}" if self.kind == "head" else f"{self.kind}{self.layer}"


def head(layer: int, index: int) -> Node:
    return Node("head", layer, index)


def head_pairs(heads: Iterable[Node]) -> list[list[int]]:
    """[layer, head] of each, as results store heads."""
    return [[node.layer, node.index] for node in heads]


def parse_head(name: object) -> Node:
    """The head named "L3H2"; UserError if `name` is not of that form."""
    match = HEAD_NAME.fullmatch(str(name).strip())
    if match is None:
        raise UserError(f"head {name!r} is not of the form L<layer>H<head>; write for example L3H2")
    return head(int(match.group(1)), int(match.group(2)))


@dataclass(frozen=True)
class Role:
    """Heads that do the same thing.

    `ordinal` orders roles by the processing step that their function implies, one of `STEPS` (None where the function
    implies none): the order alone counts, as C23 and implied pathways read it. `sign` is -1 for heads expected to work
    against the answer. `assigned_by` says how the label was given: "function" (what the head does), "construction",
    "layer" or "none"; `evidence` in words.
    """

    heads: tuple[Node, ...]
    ordinal: int | None = None
    sign: int = 1
    assigned_by: Literal["function", "construction", "layer", "none"] = "none"
    evidence: str = ""


@dataclass(frozen=True)
class Pathway:
    """A claim: the heads of `receiver` read what those of `sender` wrote, directly, through the residual stream.

    `sender` is a role or "embedding", `receiver` a role or "logits". `input` names the one projection that reads it (q, k
    or v; None: all three). UserError for any other.
    """

    sender: str
    receiver: str
    input: str | None = None

    def __post_init__(self) -> None:
        if self.input not in (None, *PROJECTION_NAMES):
            raise UserError(
                f"pathway {self} ends at input {self.input!r}; a head has q, k and v, and no input means all three"
            )
        if self.input is not None and self.receiver == OUTPUT:
            raise UserError(f"pathway {self} ends at an input of the logits, which have no q, k or v; leave it out")

    def __str__(self) -> str:
        return f"{self.sender}->{self.receiver}" + (f".{self.input}" if self.input else "")


@dataclass(frozen=True)
class Circuit:
    """A claim: these heads, in these roles, do this task in this model. `provenance` says where it comes from.

    `pathways` are all the ways in which roles feed one another, or none if the claim does not say; they are kept once each,
    in order of their ends. `mlps` are the layers whose MLPs the claim names as well; ablations of heads leave every MLP as
    it is, so only experiments that patch edges read them. `primary_recipe` is the ablation under which the claim is made: zero,
    zero_raw (`circuits.interventions.Recipe` has the difference), mean (per template and position), mean_pooled, resample or
    noise. Raises UserError for a pathway that no head of the roles can take, and for a role with the name of an end that is
    no role.
    """

    name: str
    task: str
    model: str
    roles: Mapping[str, Role]
    provenance: Mapping[str, Any]
    pathways: tuple[Pathway, ...] = ()
    mlps: tuple[int, ...] = ()
    primary_recipe: str = "mean"

    def __post_init__(self) -> None:
        if self.primary_recipe not in PRIMARY_RECIPES:
            raise UserError(
                f"circuit {self.name!r} has primary_recipe {self.primary_recipe!r}; use one of {', '.join(PRIMARY_RECIPES)}"
            )
        for name in (INPUT, OUTPUT):
            if name in self.roles:
                raise UserError(f"circuit {self.name!r} calls a role {name!r}, which is an end of pathways; rename it")
        for pathway in self.pathways:
            self._require(pathway)
        in_order = sorted(set(self.pathways), key=lambda way: (way.sender, way.receiver, way.input or ""))
        object.__setattr__(self, "pathways", tuple(in_order))

    def _require(self, pathway: Pathway) -> None:
        """UserError unless both ends exist and information can flow from the one to the other."""
        where = f"circuit {self.name!r} has the pathway {pathway}, but"
        for end, other in ((pathway.sender, INPUT), (pathway.receiver, OUTPUT)):
            if end != other and end not in self.roles:
                raise UserError(f"{where} {end!r} is no role of it; use {', '.join((*self.roles, other))}")
        inside = pathway.sender != INPUT and pathway.receiver != OUTPUT
        if inside and not self.feeds(pathway.sender, pathway.receiver):
            raise UserError(f"{where} no head of the sender is in a layer before one of the receiver; remove it")

    def feeds(self, sender: str, receiver: str) -> bool:
        """True if some head of role `sender` lies in an earlier layer than some head of role `receiver`."""
        return any(a.layer < b.layer for a in self.roles[sender].heads for b in self.roles[receiver].heads)

    @property
    def heads(self) -> tuple[Node, ...]:
        """All heads once, in (layer, head) order."""
        return tuple(sorted({node for role in self.roles.values() for node in role.heads}))

    @property
    def sha256(self) -> str:
        """Identity of the claim as result 20 stores it: heads, roles, evidence, provenance; pathways and MLPs if any."""
        return results_io.sha256(self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        """The form stored in result 20 and, with heads by name, in circuit files."""
        roles = {
            name: {
                "heads": head_pairs(role.heads),
                "ordinal": role.ordinal,
                "sign": role.sign,
                "assigned_by": role.assigned_by,
                "evidence": role.evidence,
            }
            for name, role in self.roles.items()
        }
        document = {
            "name": self.name,
            "task": self.task,
            "model": self.model,
            "roles": roles,
            "provenance": dict(self.provenance),
        }
        if self.pathways:
            document["pathways"] = [
                {"sender": way.sender, "receiver": way.receiver, "input": way.input} for way in self.pathways
            ]
        if self.mlps:
            document["mlps"] = list(self.mlps)
        if self.primary_recipe != "mean":
            document["primary_recipe"] = self.primary_recipe
        return document

    def check(self, n_layers: int, n_heads: int) -> Circuit:
        """Return self; UserError if it is empty or names a head outside a model of this shape."""
        if not self.heads:
            raise UserError(f"circuit {self.name!r} has no heads; name at least one, for example L0H0")
        for node in self.heads:
            if node.layer >= n_layers or node.index >= n_heads:
                raise UserError(
                    f"circuit {self.name!r} names head {node}, but model {self.model!r} has layers 0-{n_layers - 1} "
                    f"with heads 0-{n_heads - 1}; correct the head"
                )
        for layer in self.mlps:
            if layer >= n_layers:
                raise UserError(
                    f"circuit {self.name!r} names the MLP of layer {layer}, but model {self.model!r} has layers "
                    f"0-{n_layers - 1}; correct the layer"
                )
        return self


def load(path: Path) -> Circuit:
    """Read a circuit file (YAML, heads as "L3H2"); UserError names what is wrong with it."""
    if not Path(path).is_file():
        raise UserError(f"no circuit file at {path}; run with circuit=discovered, or write one as the README shows")
    try:
        document = yaml.safe_load(Path(path).read_text())
        _require_known(path, document, Circuit)
        roles = {str(name): _read_role(path, role) for name, role in document["roles"].items()}
        pathways = tuple(_read_pathway(path, item) for item in document.get("pathways") or ())
        mlps = tuple(sorted({int(layer) for layer in document.get("mlps") or ()}))
        return Circuit(
            document["name"],
            document["task"],
            document["model"],
            roles,
            document["provenance"],
            pathways,
            mlps,
            str(document.get("primary_recipe", "mean")),
        )
    except UserError:
        raise
    except (yaml.YAMLError, KeyError, TypeError, AttributeError, ValueError) as error:
        raise UserError(
            f"{path} is not a circuit file ({type(error).__name__}: {error}); it needs name, task, model, provenance "
            "and roles with their heads"
        ) from error


def _read_role(path: Path, given: Mapping[str, Any]) -> Role:
    _require_known(path, given, Role)
    return Role(
        heads=tuple(parse_head(item) for item in given["heads"]),
        ordinal=_read_ordinal(path, given.get("ordinal")),
        sign=int(given.get("sign", 1)),
        assigned_by=given.get("assigned_by", "none"),
        evidence=str(given.get("evidence", "")),
    )


def _read_ordinal(path: Path, given: object) -> int | None:
    """The processing step; UserError if it is neither null nor one of `STEPS`."""
    if given is None or (type(given) is int and given in STEPS):
        return given
    steps = ", ".join(f"{step} ({name})" for step, name in STEPS.items())
    raise UserError(f"{path} has ordinal {given!r}; use {steps}, or null for a role without a step")


def _read_pathway(path: Path, given: Mapping[str, Any]) -> Pathway:
    _require_known(path, given, Pathway)
    return Pathway(str(given["sender"]), str(given["receiver"]), given.get("input"))


def _require_known(path: Path, given: Mapping[str, Any], value: type) -> None:
    """UserError for a key that the value has not: a misspelt `sign` would silently be the default."""
    known = [field.name for field in fields(value)]
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise UserError(f"{path} has the unknown key {unknown[0]!r}; use {', '.join(known)}")


def save(circuit: Circuit, path: Path) -> None:
    """Write a circuit file that `load` reads back to an equal circuit."""
    document = circuit.to_dict()
    for role in document["roles"].values():
        role["heads"] = [str(head(*pair)) for pair in role["heads"]]
    style = {"sort_keys": False, "width": 110, "allow_unicode": True, "default_flow_style": None}
    results_io.write_text(Path(path), yaml.safe_dump(document, **style))
