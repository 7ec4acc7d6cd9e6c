"""Node, Role, Pathway and Circuit: claims about a model, as values."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

import yaml

import node_names
import results_io
from circuits import yaml_file
from node_names import HEADS, HEADS_AND_MLPS, SCOPES
from results_io import UserError

PRIMARY_RECIPES = ("zero", "zero_raw", "mean", "mean_pooled", "resample", "noise")
Kind = Literal["head", "mlp", "attention", "residual", "embedding"]
HEAD_NAME = re.compile(r"L([0-9]+)H([0-9]+)")
INPUT, OUTPUT = "embedding", "logits"  # ends of pathways that are not roles
ASSIGNED_BY = ("function", "construction", "layer", "none")  # how a role got its label
PROJECTION_NAMES = ("q", "k", "v")
NEEDED = {"name": str, "task": str, "model": str, "provenance": Mapping, "roles": Mapping}  # keys of a circuit file
SUCH_AS = {Mapping: "keys with values such as {example}", str: "a text"}
EXAMPLES = {"provenance": "kind: user", "roles": "movers: {heads: [L2H1]}"}
OPTIONAL = {"scope": str, "primary_recipe": str, "pathways": list, "mlps": list}  # of a circuit file
OF_A_ROLE = {"heads": list, "nodes": list, "evidence": str}
KINDS = {str: "a text", list: "a list"}
STEPS = {1: "early", 2: "middle", 3: "between middle and late", 4: "late: it writes the answer"}  # ordinals of roles


@dataclass(frozen=True, order=True)
class Node:
    """A place in the model: an attention head, or a whole MLP output, attention output, residual stream or embedding.

    `index` is the head's index within its layer; -1 for every other kind. "residual" is the stream entering the layer.
    With a `position` it is the part of the node at that named position, with `but` the part at all positions except those
    named; with neither it is the node at all positions.
    """

    kind: Kind
    layer: int
    index: int = -1
    position: str = ""
    but: tuple[str, ...] = ()

    def __str__(self) -> str:
        """The name in graphs and traces: L9H6, mlp10, residual3. Claims use `name`, which differs for MLPs."""
        return self.name if self.kind == "head" else f"{self.kind}{self.layer}"

    @property
    def name(self) -> str:
        """The name in claims: L9H6, M10, L9H6@end, and L9H6@!end for every position but the end."""
        named = node_names.NodeName(self.kind, self.layer, self.index, self.position)
        place = str(named) if self.kind in ("head", "mlp") else f"{self.kind}{self.layer}"
        return place + (f"@!{',!'.join(self.but)}" if self.but else "")

    @property
    def whole(self) -> Node:
        """The node at all positions."""
        return Node(self.kind, self.layer, self.index) if self.is_part else self

    @property
    def is_part(self) -> bool:
        return bool(self.position or self.but)


def head(layer: int, index: int) -> Node:
    return Node("head", layer, index)


def mlp(layer: int) -> Node:
    return Node("mlp", layer)


def only_heads(nodes: Iterable[Node]) -> bool:
    """True if all are heads at all positions."""
    return all(node.kind == "head" and not node.is_part for node in nodes)


def heads_of(nodes: Iterable[Node]) -> tuple[Node, ...]:
    """The heads among `nodes`, each once and at all positions, in (layer, head) order."""
    return tuple(sorted({node.whole for node in nodes if node.kind == "head"}))


def names_of(nodes: Iterable[Node]) -> list[str]:
    """The nodes' names in claims."""
    return [node.name for node in nodes]


def stored_nodes(nodes: Iterable[Node]) -> dict[str, Any]:
    """Nodes as results store them: `heads` by (layer, head); `nodes` names all of them if some are MLPs or parts."""
    nodes = tuple(nodes)
    if only_heads(nodes):
        return {"heads": head_pairs(nodes)}
    return {"heads": head_pairs(heads_of(nodes)), "nodes": names_of(nodes)}


def head_pairs(heads: Iterable[Node]) -> list[list[int]]:
    """[layer, head] of each head, as results store heads."""
    return [[node.layer, node.index] for node in heads]


def parse_head(name: object) -> Node:
    """The head named "L3H2"; UserError if `name` is not of that form."""
    match = HEAD_NAME.fullmatch(str(name).strip())
    if match is None:
        raise UserError(f"head {name!r} is not of the form L<layer>H<head>; write for example L3H2")
    return head(int(match.group(1)), int(match.group(2)))


def parse_node(name: object) -> Node:
    """The node that a claim names: "L3H2", "M4", "L3H2@end" or "M4@subject"; UserError if `name` is not of that form."""
    found = node_names.read(str(name))
    if found is None:
        raise UserError(
            f"head {name!r} is not of the form L<layer>H<head>, and no MLP, M<layer>; @<position> after either says that it "
            "counts at one named position only; write for example L3H2, M4 or L3H2@end"
        )
    return Node(found.kind, found.layer, found.index, found.position)  # pyright: ignore[reportArgumentType]


@dataclass(frozen=True)
class Role:
    """Heads and MLPs with one function, each at all positions or at a named position.

    `ordinal` orders roles by the processing step that their function implies, one of `STEPS` (None if it implies none). C23 and
    implied pathways use only the order. `sign` is -1 for heads expected to work against the answer. `assigned_by` says how the
    label was assigned: "function" (what the head does), "construction", "layer" or "none"; `evidence` says it in words.
    """

    heads: tuple[Node, ...]
    ordinal: int | None = None
    sign: int = 1
    assigned_by: Literal["function", "construction", "layer", "none"] = "none"
    evidence: str = ""
    mlps: tuple[Node, ...] = ()

    @classmethod
    def of(cls, nodes: Iterable[Node], **others: Any) -> Role:
        """The role of these heads and MLPs."""
        nodes = tuple(nodes)
        heads, mlps = (tuple(node for node in nodes if node.kind == kind) for kind in ("head", "mlp"))
        return cls(heads, mlps=mlps, **others)

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All nodes of the role."""
        return (*self.heads, *self.mlps)


@dataclass(frozen=True)
class Pathway:
    """A claim: the heads of `receiver` read the output of the heads of `sender` directly through the residual stream.

    `sender` is a role or "embedding", `receiver` a role or "logits". `input` is the projection that reads it (q, k or v; None:
    all three). Raises UserError for any other `input`.
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
    """A claim: these nodes, in these roles, do this task in this model. `provenance` says where it comes from.

    `scope` says what is ablated outside the claim: "heads" (MLPs stay intact) or "heads and mlps". The default is heads, or
    heads and mlps if a role has MLPs.

    `pathways` are all the ways in which roles feed one another, or none if the claim does not say; each is kept once, sorted by
    its ends. `mlps` are layers whose MLPs a claim about heads names in addition. Ablations leave those intact, so only
    experiments that patch edges read them. `primary_recipe` is the ablation under which the claim is made: zero, zero_raw (see
    `circuits.interventions.Recipe` for the difference), mean (per template and position), mean_pooled, resample or noise.
    Raises UserError for a pathway that no head of the roles can take, for a role named "embedding" or "logits", for MLPs
    outside the scope, and for a node that is claimed both at all positions and at one.
    """

    name: str
    task: str
    model: str
    roles: Mapping[str, Role]
    provenance: Mapping[str, Any]
    pathways: tuple[Pathway, ...] = ()
    mlps: tuple[int, ...] = ()
    primary_recipe: str = "mean"
    scope: str = ""

    def __post_init__(self) -> None:
        self._check_scope()
        for node in self.nodes:
            if node.is_part and node.whole in self.nodes:
                raise UserError(
                    f"circuit {self.name!r} claims {node.whole.name} at all positions and again as {node.name}; keep one "
                    "of the two"
                )
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

    def _check_scope(self) -> None:
        """Raises UserError for an unknown scope and for one that does not contain the claimed nodes."""
        scope = " ".join(str(self.scope).lower().replace("_", " ").split())
        if scope not in ("", *SCOPES):
            raise UserError(f"circuit {self.name!r} has scope {self.scope!r}; use {' or '.join(map(repr, SCOPES))}")
        object.__setattr__(self, "scope", scope)
        if scope == HEADS and any(role.mlps for role in self.roles.values()):
            raise UserError(
                f"circuit {self.name!r} has an MLP in a role but the scope {HEADS!r}, in which every MLP stays as it is; use "
                f"scope {HEADS_AND_MLPS!r}, or list the MLP's layer under mlps, which names it and judges nothing"
            )
        if self.mlps and self.judges_mlps:
            raise UserError(
                f"circuit {self.name!r} lists MLPs under mlps, which says that they stay as they are, but its scope is "
                f"{HEADS_AND_MLPS!r}; put them into a role, for example M{self.mlps[0]}"
            )

    @property
    def judges_mlps(self) -> bool:
        """True if the claim is about heads and MLPs, so that every MLP it does not name is ablated."""
        return (self.scope or SCOPES[any(role.mlps for role in self.roles.values())]) == HEADS_AND_MLPS

    def _require(self, pathway: Pathway) -> None:
        """Raises UserError unless both ends exist and information can flow from sender to receiver."""
        where = f"circuit {self.name!r} has the pathway {pathway}, but"
        for end, other in ((pathway.sender, INPUT), (pathway.receiver, OUTPUT)):
            if end != other and end not in self.roles:
                raise UserError(f"{where} {end!r} is no role of it; use {', '.join((*self.roles, other))}")
        inside = pathway.sender != INPUT and pathway.receiver != OUTPUT
        if inside and not self.feeds(pathway.sender, pathway.receiver):
            raise UserError(f"{where} no head of the sender is in a layer before one of the receiver; remove it")

    def feeds(self, sender: str, receiver: str) -> bool:
        """True if some node of role `sender` comes before some node of role `receiver`."""
        return any(_before(a, b) for a in self.roles[sender].nodes for b in self.roles[receiver].nodes)

    @property
    def heads(self) -> tuple[Node, ...]:
        """All heads once, in (layer, head) order, whatever positions they are claimed at."""
        return heads_of(self.nodes)

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All claimed nodes and parts, each once: heads in (layer, head) order, then MLPs by layer."""
        return tuple(sorted({node for role in self.roles.values() for node in role.nodes}))

    @property
    def mlp_layers(self) -> tuple[int, ...]:
        """The layers whose MLPs the claim names, in roles or in `mlps`."""
        return tuple(sorted({*self.mlps, *(node.layer for node in self.nodes if node.kind == "mlp")}))

    def in_scope(self, heads: Iterable[Node], n_layers: int) -> tuple[Node, ...]:
        """All nodes that the scope holds in a model of these `heads`: heads in their order, then MLPs by layer."""
        return (*heads, *(mlp(layer) for layer in range(n_layers) if self.judges_mlps))

    @property
    def sha256(self) -> str:
        """Digest of the claim as result 20 stores it: heads, roles, evidence, provenance; pathways and MLPs if any."""
        return results_io.sha256(self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        """The form stored in result 20; circuit files store the same with heads by name."""
        roles = {
            name: {
                **stored_nodes(role.nodes),
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
        if self.judges_mlps:
            document["scope"] = HEADS_AND_MLPS
        return document

    def check(self, n_layers: int, n_heads: int, positions: Iterable[str] | None = None) -> Circuit:
        """Return self. Raises UserError if the claim is empty, names a head or MLP outside a model of this shape, or a position
        that is not among `positions` (None: not checked).
        """
        if not self.nodes:
            raise UserError(f"circuit {self.name!r} has no heads; name at least one, for example L0H0")
        known = None if positions is None else tuple(positions)
        for node in self.nodes:
            if known is not None and node.position and node.position not in known:
                raise UserError(
                    f"circuit {self.name!r} claims {node.name}, but {node.position!r} is no position of task {self.task!r}; use "
                    f"one of {', '.join(known)}"
                )
        for node in self.heads:
            if node.layer >= n_layers or node.index >= n_heads:
                raise UserError(
                    f"circuit {self.name!r} names head {node}, but model {self.model!r} has layers 0-{n_layers - 1} "
                    f"with heads 0-{n_heads - 1}; correct the head"
                )
        for layer in self.mlp_layers:
            if not 0 <= layer < n_layers:
                raise UserError(
                    f"circuit {self.name!r} names the MLP of layer {layer}, but model {self.model!r} has layers "
                    f"0-{n_layers - 1}; correct the layer"
                )
        return self


def _before(sender: Node, receiver: Node) -> bool:
    """True if `sender` lies in an earlier layer, or is a head of the layer whose MLP `receiver` is."""
    return (sender.layer, sender.kind == "mlp") < (receiver.layer, receiver.kind == "mlp")


def units(claimed: Iterable[Node], every: Iterable[Node]) -> tuple[Node, ...]:
    """The nodes `every`, with partly claimed nodes cut into the claimed parts and the rest, so no unit is partly claimed."""
    parts: dict[Node, list[Node]] = {}
    for node in sorted(set(claimed)):
        if node.is_part:
            parts.setdefault(node.whole, []).append(node)
    return tuple(unit for node in every for unit in _cut(node, parts.get(node, [])))


def complement(claimed: Iterable[Node], every: Iterable[Node]) -> tuple[Node, ...]:
    """What is ablated if only `claimed` of the nodes `every` stays intact: other nodes, and unclaimed parts of claimed nodes."""
    inside = set(claimed)
    return tuple(unit for unit in units(inside, every) if unit not in inside)


def _cut(node: Node, parts: list[Node]) -> list[Node]:
    """The node, or its claimed parts and what is left of it."""
    return [*parts, replace(node, but=tuple(part.position for part in parts))] if parts else [node]


def load(path: Path) -> Circuit:
    """Read a circuit file (YAML, nodes as `parse_node` reads them). Raises UserError with what is wrong with the file."""
    path = Path(path)
    if path.is_dir():
        raise UserError(f"{path} is a folder; give the circuit file in it, such as {path / 'circuit.yaml'}")
    if not path.is_file():
        raise UserError(
            f"no circuit file at {path}; run with circuit=discovered, or write one as docs/commands.md shows"
        )
    try:
        document = yaml_file.read(path)
        _require_document(document)
        _require_known(path, document, Circuit)
        roles = {name: _read_role(path, name, _keyed(f"role {name}", role)) for name, role in document["roles"].items()}
        _require_kinds(document, OPTIONAL)
        ways = document.get("pathways") or ()
        pathways = tuple(_read_pathway(path, _keyed("a pathway", item)) for item in ways)
        mlps = tuple(sorted(map(_layer, document.get("mlps") or ())))
        _require_once(path, "mlps", (f"layer {layer}" for layer in mlps))
        return Circuit(
            document["name"],
            document["task"],
            document["model"],
            roles,
            document["provenance"],
            pathways,
            mlps,
            document.get("primary_recipe") or "mean",
            document.get("scope") or "",
        )
    except UserError:
        raise
    except RecursionError as error:
        raise UserError(
            f"{path} is nested too deeply to be a circuit file; write it as docs/commands.md shows"
        ) from error
    except (yaml.YAMLError, KeyError, TypeError, AttributeError, ValueError, OSError) as error:
        raise UserError(
            f"{path} is not a circuit file ({_reason(error)}); it needs name, task, model, provenance and roles with their "
            "heads"
        ) from error


def _require_document(document: Any) -> None:
    """Raises TypeError or ValueError, with the reason, unless every needed key is present and has a value of its type."""
    if document is None:
        raise ValueError("it is empty")
    if not isinstance(document, Mapping):
        raise TypeError(f"it holds a {type(document).__name__} in place of keys with values")
    for name, kind in NEEDED.items():
        if name not in document and set(document) & set(NEEDED):
            raise ValueError(f"it has no {name}")
        given = document.get(name)
        if name in document and (not isinstance(given, kind) or (isinstance(given, str) and not given.strip())):
            raise TypeError(f"{name} is {given!r}, and not {SUCH_AS[kind].format(example=EXAMPLES.get(name))}")
    kind = document["provenance"].get("kind") if "provenance" in document else ""
    if "provenance" in document and (not isinstance(kind, str) or not kind.strip()):
        raise TypeError(f"the kind of provenance is {kind!r}, and not a text such as user")


def _require_kinds(given: Mapping[str, Any], kinds: Mapping[str, type]) -> None:
    """Raises TypeError for an optional key whose value has the wrong type; null counts as no key."""
    for name, kind in kinds.items():
        if (value := given.get(name)) is not None and not isinstance(value, kind):
            raise TypeError(f"{name} is {value!r}, and not {KINDS[kind]}")


def _reason(error: Exception) -> str:
    """What is wrong with a file, in one line; errors of YAML and of text encoding are put in words."""
    if isinstance(error, UnicodeDecodeError):
        return f"the byte 0x{error.object[error.start]:02x} is not UTF-8"
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark
        return f"no YAML: {error.problem or error.context}" + (f" in line {mark.line + 1}" if mark else "")
    if isinstance(error, yaml.reader.ReaderError):
        return f"no text: character #x{error.character:04x}"
    return f"no {error}" if isinstance(error, KeyError) else " ".join(str(error).split())


def _keyed(what: str, given: Any) -> Mapping[str, Any]:
    """`given`, which must be a mapping; raises TypeError for anything else."""
    if not isinstance(given, Mapping):
        raise TypeError(f"{what} is {given!r}, and not keys with values")
    return given


def _layer(given: Any) -> int:
    if type(given) is not int or given < 0:
        raise ValueError(f"mlps holds {given!r}, and not a layer from 0")
    return given


def _require_once(path: Path, what: str, named: Iterable[object]) -> None:
    """Raises UserError if something is named twice: one of the two is a slip, and which one, only the author knows."""
    for one, count in Counter(named).items():
        if count > 1:
            raise UserError(f"{path} has {one} in {what} {count} times; keep one, or correct the others")


def _read_role(path: Path, name: str, given: Mapping[str, Any]) -> Role:
    if not name.strip():
        raise ValueError("a role has no name")
    _require_known(path, given, Role, "nodes")
    if "mlps" in given:
        raise UserError(f"{path} has mlps inside a role; name them among its nodes, for example nodes: [L3H2, M4]")
    _require_kinds(given, OF_A_ROLE)
    nodes = [parse_node(item) for key in ("heads", "nodes") for item in given.get(key) or ()]
    if "nodes" not in given:
        given["heads"]  # a KeyError says what is missing
    if not nodes:
        raise ValueError("a role has neither heads nor nodes")
    _require_once(path, f"role {name}", names_of(nodes))
    return Role.of(
        nodes,
        ordinal=_read_ordinal(path, given.get("ordinal")),
        sign=_one_of(path, "sign", given.get("sign", 1), (1, -1)),
        assigned_by=_one_of(path, "assigned_by", given.get("assigned_by", "none"), ASSIGNED_BY),
        evidence=given.get("evidence") or "",
    )


def _one_of(path: Path, name: str, given: Any, known: tuple[Any, ...]) -> Any:
    """`given`. Raises UserError unless it equals a known value and has its type (true is not 1)."""
    if not any(type(given) is type(one) and given == one for one in known):
        raise UserError(f"{path} has {name} {given!r}; use {' or '.join(map(str, known))}")
    return given


def _read_ordinal(path: Path, given: object) -> int | None:
    """The processing step; UserError if it is neither null nor one of `STEPS`."""
    if given is None or (type(given) is int and given in STEPS):
        return given
    steps = ", ".join(f"{step} ({name})" for step, name in STEPS.items())
    raise UserError(f"{path} has ordinal {given!r}; use {steps}, or null for a role without a step")


def _read_pathway(path: Path, given: Mapping[str, Any]) -> Pathway:
    _require_known(path, given, Pathway)
    return Pathway(str(given["sender"]), str(given["receiver"]), given.get("input"))


def _require_known(path: Path, given: Mapping[str, Any], value: type, *others: str) -> None:
    """Raises UserError for an unknown key: a misspelt `sign` would silently mean the default.

    Known keys are the fields of `value` and `others`.
    """
    known = [*(field.name for field in fields(value)), *others]
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise UserError(f"{path} has the unknown key {unknown[0]!r}; use {', '.join(known)}")


def save(circuit: Circuit, path: Path) -> None:
    """Write a circuit file that `load` reads back to an equal circuit."""
    document = circuit.to_dict()
    for name, role in circuit.roles.items():
        stored, names = document["roles"][name], names_of(role.nodes)
        own = {"heads": names} if only_heads(role.nodes) else {"nodes": names}
        document["roles"][name] = own | {key: value for key, value in stored.items() if key not in ("heads", "nodes")}
    document |= {"scope": circuit.scope} if circuit.scope else {}
    if not circuit.scope:
        document.pop("scope", None)  # it follows from the roles
    style = {"sort_keys": False, "width": 110, "allow_unicode": True, "default_flow_style": None}
    results_io.write_text(Path(path), yaml.safe_dump(document, **style))
