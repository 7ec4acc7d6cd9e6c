"""Lab: a model, prompts and a circuit to try interventions on, each in one line.

Every answer is a `Finding`: numbers with their interval, and the figure that shows them. All of them come from the code of
the numbered measurements, so the same prompts give the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any, Literal, cast

import numpy as np
import pandas as pd
from jaxtyping import Float

import node_names
from calibrations.statistics import Insufficient, reportable_ratio
from circuits.circuit import (
    PRIMARY_RECIPES,
    Circuit,
    Kind,
    Node,
    complement,
    mlp,
    parse_node,
)
from circuits.interventions import Recipe, Sweep, Variant, ablate, denoise, noise
from circuits.measurements import (
    ablation_battery,
    activation_patching,
    attention,
    causal_tracing,
    direct_logit_attribution,
    knockouts,
    logit_lens,
)
from circuits.models import Model
from circuits.prompts import CHANGED, PromptSet
from circuits.study import Study
from meridian import typed_prompt
from meridian.figures import lens, patterns
from meridian.figures.heads import layer_head_map
from meridian.figures.intervals import LEVEL, cells, finite
from meridian.figures.traces import SITES
from meridian.figures.values import Curves, Distribution, Forest, HeatMap, Series
from meridian.finding import Finding, clusters_of, forest_rows, means
from results_io import UserError

CIRCUIT = "circuit"
UNITS = {
    "logit_difference": "logit difference, nats",
    "probability_difference": "probability difference",
    "sequence": "log-probability difference, nats",
}
HEAD_MAPS = {
    "denoising": "what the head's clean output adds to the corrupted run",
    "noising": "what the head's corrupted output takes from the clean run",
    "knockout": "what is lost when the head alone is mean-ablated",
    "attribution": "what the head writes into the logit difference itself",
}
COMPONENTS_SHOWN = 16

Direction = Literal["denoising", "noising"]
Heads = str | Node | Circuit | Iterable["str | Node"]
Question = Heads | Mapping[str, Heads]


@dataclass(frozen=True, eq=False)
class Lab:
    """`study`: the loaded model on the prompts of `split` only. Made by `meridian.explore`.

    Heads are named "L2H1" and MLPs "M3"; "L2H1@end" means one position only. A role of the circuit is named by its name, and
    "circuit" means everything that the circuit claims. A list means the union of its entries. To ask several questions at once,
    pass {label: heads}; each gives a row.
    """

    study: Study
    split: str

    @property
    def model(self) -> Model:
        return self.study.model

    @property
    def prompts(self) -> PromptSet:
        """The prompts as tokens; `texts` shows them."""
        return self.study.prompts

    @property
    def circuit(self) -> Circuit:
        """The circuit. UserError if there is none."""
        if self.study.circuit is None:
            raise UserError(
                f"{self.model.name} comes with no circuit for {self.study.task.name}; give explore circuit='discovered', "
                "a circuit file or names of heads"
            )
        return self.study.circuit

    def __repr__(self) -> str:
        heads = "no circuit" if self.study.circuit is None else f"circuit of {len(self.circuit.heads)} heads"
        prompts, templates = len(self.prompts), len(set(self.prompts.templates))
        return (
            f"{self.study.task.title}: {self.model.identity.describe()}, {prompts} {self.split} prompt{'s' * (prompts != 1)}, "
            f"{templates} template{'s' * (templates != 1)}, {heads}"
        )

    # --- what there is -----------------------------------------------------------------------------------------------

    def texts(self, n: int = 5) -> pd.DataFrame:
        """The first `n` prompts as the model reads them, with answer and foil."""
        rows = range(min(n, len(self.prompts)))
        sides = {"clean": self.prompts.clean, "corrupted": self.prompts.corrupted}
        table = {name: [self._text(tokens[row, : self._length(row)]) for row in rows] for name, tokens in sides.items()}
        words = {"answer": self.prompts.answers, "foil": self.prompts.wrong}
        table |= {name: [self._text(ids[row][ids[row] >= 0]) for row in rows] for name, ids in words.items()}
        table["template"] = [self.prompts.templates[row] for row in rows]
        return pd.DataFrame(table)

    def roles(self) -> pd.DataFrame:
        """The circuit's heads with their roles."""
        rows = [
            {"head": str(head), "role": name, "sign": role.sign, "evidence": role.evidence}
            for name, role in self.circuit.roles.items()
            for head in role.heads
        ]
        return pd.DataFrame(rows).set_index("head")

    def prompt(self, text: str, answer: str, foil: str, corrupted: str | None = None) -> Lab:
        """The same model and circuit on one typed prompt: lab.prompt("When Mary and John ...", "Mary", "John").ablate("L2H1").

        `text` ends right before the answer. `corrupted`: the other prompt of the pair, for patching; None stands for `text` with
        answer and foil exchanged. One prompt gives no interval. A prompt in one of the task's wordings has that wording's named
        positions and means. Any other prompt has only the position "end" and recipes that need no similar prompts (zero,
        zero_raw, mean_pooled, noise). UserError for words that the tokenizer does not know, and as for `typed_prompt.study_of`.
        """
        return Lab(typed_prompt.study_of(self.study, text, answer, foil, corrupted), typed_prompt.TYPED)

    # --- interventions -----------------------------------------------------------------------------------------------

    def logit_difference(self) -> Finding:
        """The task's metric of the intact model on every prompt, clean (D) and corrupted (C)."""
        effects = self.study.run(Sweep((Variant("clean"), Variant("corrupted", base="corrupted"))))
        table = means(effects.names, effects.logit_diff, self.prompts, correct=effects.correct.mean(1))
        figure = Distribution(
            name="logit_difference",
            title=f"{self.study.task.title}: does {self.model.name} do it?",
            caption=f"Each prompt's {self._metric}; above 0 the answer is preferred to the foil. {self._sample}",
            x_label=self._unit,
            samples={name: tuple(map(float, row)) for name, row in zip(effects.names, effects.logit_diff, strict=True)},
            lines={"indifferent": 0.0},
        )
        return Finding(figure, table, effects.logit_diff)

    def patch(
        self, heads: Question, direction: Direction = "denoising", positions: Sequence[str] | None = None
    ) -> Finding:
        """Effect of patching heads between the clean and the corrupted run; `share` is relative to mean(D - C).

        denoising: LD(corrupted run with their clean output) - C tests whether they are sufficient. noising: D - LD(clean run
        with their corrupted output) tests whether they are necessary. `positions`: roles of positions in the task's prompts;
        None for all positions.
        """
        if direction not in ("denoising", "noising"):
            raise UserError(f"direction={direction} is unknown; use denoising or noising")
        asked, make = self._asked(heads), denoise if direction == "denoising" else noise
        placed = [node for nodes in asked.values() for node in nodes if node.is_part]
        if placed and positions is not None:
            raise UserError(f"{placed[0].name} names its position already; leave positions out, or the position")
        for role in positions or ():
            if role not in self.prompts.positions:
                raise UserError(f"position {role!r} is unknown; use {', '.join(self.prompts.positions)}")
        where = None if positions is None else tuple(positions)
        variants = [make(nodes, f"{direction} {label}", where) for label, nodes in asked.items()]
        clean, corrupted, *patched = self._run([Variant("clean"), Variant("corrupted", base="corrupted"), *variants])
        sign = 1 if direction == "denoising" else -1
        effects = sign * (np.stack(patched) - (corrupted if direction == "denoising" else clean))
        at = "" if positions is None else f" at {', '.join(positions)}"
        what = "added to the corrupted run by" if direction == "denoising" else "taken from the clean run by patching"
        return self._effects(
            asked, effects, (clean - corrupted).mean(), f"{direction}{at}", f"{self._metric} {what} heads"
        )

    def ablate(self, heads: Question, recipe: str | Recipe = "mean") -> Finding:
        """D - LD(heads ablated): what the intact model loses; `share` is relative to mean(D).

        `recipe`: zero (the head's constant stays), zero_raw (it goes too), mean (per template and position), mean_pooled,
        resample or noise (mean over their draws), or a Recipe.
        """
        asked = self._asked(heads)
        draws = self._recipes(recipe)
        variants = [ablate(nodes, one, f"{label}, {one}") for label, nodes in asked.items() for one in draws]
        clean, *ablated = self._run([Variant("clean"), *variants])
        effects = clean - _mean_of_draws(ablated, len(draws))
        what = f"{self._metric} lost when heads are ablated ({draws[0] if len(draws) == 1 else recipe})"
        return self._effects(asked, effects, clean.mean(), "ablation", what)

    def keep_only(self, heads: Question = CIRCUIT, recipe: str | Sequence[str] = "mean") -> Finding:
        """Faithfulness: sum of LD with every other head ablated over sum of D, with its Fieller interval over clusters.

        MLPs stay intact, unless some are among `heads` or a circuit of heads and MLPs is asked for: then all other MLPs are
        ablated too.

        Several recipes give a row each. `low` and `high` are missing if the ratio is not reportable, because the model does not
        do the task on these prompts.
        """
        asked, recipes = self._asked(heads), [recipe] if isinstance(recipe, str) else list(recipe)
        rows, values = [], []
        for name in recipes:
            draws = self._recipes(name)
            variants = [
                ablate(sorted(complement(nodes, self._scope(nodes))), one, f"only {label}, {one}")
                for label, nodes in asked.items()
                for one in draws
            ]
            clean, *kept = self._run([Variant("clean"), *variants])
            for label, row in zip(asked, _mean_of_draws(kept, len(draws)), strict=True):
                rows.append({"kept": label, "group": f"{name.replace('_', ' ')} ablation", **self._ratio(row, clean)})
                values.append(row)
        table = pd.DataFrame(rows).set_index("kept")
        figure = Forest(
            name="faithfulness",
            title="Faithfulness: what is left of the behaviour with these heads alone",
            caption=f"Sum of the {self._metric} with all other heads ablated over its sum in the intact model; MLPs stay, "
            f"unless some are asked for or the circuit is about MLPs too. "
            f"1 is the intact model.{self._intervals('Fieller')} {self._sample}",
            x_label="faithfulness",
            rows=forest_rows(table),
            lines={"intact model": 1.0},
            level=LEVEL,
        )
        return Finding(figure, table, np.stack(values))

    def head_map(self, what: str = "denoising") -> Finding:
        """Every head separately: denoising or noising (as in measurement 02), knockout (21) or attribution (03)."""
        if what not in HEAD_MAPS:
            raise UserError(f"head_map({what!r}) is unknown; use {', '.join(HEAD_MAPS)}")
        values = self._by_head(what)
        heads, circuit = self.model.heads, self.study.circuit
        roles = {} if circuit is None else {head: name for name, role in circuit.roles.items() for head in role.heads}
        table = means([str(head) for head in heads], values.T, self.prompts)
        table = table.assign(layer=[head.layer for head in heads], role=[roles.get(head) for head in heads])
        unit = UNITS["logit_difference"] if what == "attribution" else self._unit
        framed = "" if circuit is None else " The circuit's heads are framed."
        figure = layer_head_map(
            [(head.layer, head.index) for head in heads],
            table["estimate"],
            table["low"],
            table["high"],
            name=f"heads_{what}",
            title=f"{what.capitalize()}: {HEAD_MAPS[what]}",
            caption=f"Mean over prompts, {unit}.{framed} {self._sample}",
            unit=unit,
            marked=tuple(sorted((head.layer, head.index) for head in roles)),
        )
        return Finding(figure, table, values.T)

    def trace(self, site: str = "residual", strategy: str = "entity_swap") -> Finding:
        """Causal trace: P(answer) gained by restoring one clean state in the corrupted run, by layer and position (as in 06).

        `site`: residual, attention or mlp. `strategy`: entity_swap, noise or span_deletion.
        """
        if site not in SITES:
            raise UserError(f"site={site} is unknown; use {', '.join(SITES)}")
        roles, layers = tuple(self.prompts.positions), range(self.model.n_layers)
        kind = cast("Kind", site)  # one of SITES
        places: list[tuple[Kind, int, str]] = [(kind, layer, role) for layer in layers for role in roles]
        settings = {**self.study.settings["corruption"], "strategy": strategy}
        runs = [self.study.run(causal_tracing.trace(places, one)) for one in causal_tracing.corruptions(settings)]
        answers = np.mean([np.asarray(run.answer_probability, dtype=float) for run in runs], axis=0)
        labels = [f"layer {layer} {role}" for layer in layers for role in roles]
        table = means(labels, answers[2:] - answers[1], self.prompts)
        shape = (len(layers), len(roles))
        values, low, high = (cells(table[name].to_numpy().reshape(shape)) for name in ("estimate", "low", "high"))
        figure = HeatMap(
            name=f"trace_{site}",
            title=f"Causal trace, {SITES[site]}",
            caption=f"Probability of the answer gained by restoring the {SITES[site]} of one layer at one position after "
            f"{strategy.replace('_', ' ')}; {answers[0].mean():.2f} clean, {answers[1].mean():.2f} corrupted. {self._sample}",
            x_label="position",
            y_label="layer",
            x=roles,
            y=tuple(map(str, layers)),
            values=values,
            low=low,
            high=high,
            level=LEVEL,
            unit="probability",
        )
        return Finding(figure, table, answers[2:] - answers[1])

    # --- looking inside ----------------------------------------------------------------------------------------------

    def attention(self, head: str | Node, prompt: int = 0) -> Finding:
        """The attention pattern of one head on one prompt; `table` is [query][key]."""
        node, *others = self._nodes(head)
        if others:
            raise UserError(f"{head} is {1 + len(others)} heads; a pattern is of one, for example {node}")
        if node.kind == "mlp":
            raise UserError(f"{head} is an MLP, which attends to nothing; name a head, for example L{node.layer}H0")
        pattern = list(attention.patterns(self.study, self._prompt(prompt)))[node.layer][0, node.index]
        end = self._length(prompt)
        tokens = self.model.tokenizer.convert_ids_to_tokens(self.prompts.clean[prompt, :end].tolist())
        weights = pattern[:end, :end].double().numpy()
        names = {"name": f"attention_{node}", "title": f"Attention of {node} on prompt {prompt}"}
        figure = patterns.attention_map(tokens, weights.tolist(), **names)
        return Finding(figure, pd.DataFrame(weights, index=tokens, columns=tokens))

    def logit_lens(self, prompt: int | None = None) -> Finding:
        """What the model would answer if it stopped after each layer.

        Without a prompt: mean logit difference at the last position by layer (as in 04). With a prompt: the top token of every
        layer at every position of that prompt, with its probability; `table` then holds the tokens.
        """
        if prompt is not None:
            (shown,) = logit_lens.examples(replace(self.study, prompts=self._prompt(prompt)))
            names = {"name": f"logit_lens_prompt_{prompt}", "title": f"Logit lens on prompt {prompt}"}
            figure = lens.token_map(shown, "place in the residual stream", **names)
            return Finding(figure, pd.DataFrame(shown["top_token"], index=list(figure.y), columns=list(figure.x)))
        found = logit_lens.lens(self.study, self.prompts)
        names = lens.layer_names(self.model.n_layers + 1)
        table = means(names, found.logit_diff, self.prompts, probability=found.probability.mean(1))
        mean, low, high = (tuple(map(finite, table[name])) for name in ("estimate", "low", "high"))
        figure = Curves(
            name="logit_lens",
            title="Logit lens: the logit difference by layer",
            caption=f"The stream at the last position, read through the final norm and the unembedding. {self._sample}",
            x_label="place in the residual stream",
            y_label=UNITS["logit_difference"],
            x=names,
            series=(Series("mean", mean, low, high),),
            level=LEVEL,
        )
        return Finding(figure, table, found.logit_diff)

    def direct_logit_attribution(self) -> Finding:
        """What each head, each MLP and the embedding write into the logit difference (as in 03); the rows sum to it."""
        direct_logit_attribution.require_linear(self.model)
        parts = direct_logit_attribution.attribute(self.study, self.prompts)
        heads, layers = self.model.heads, range(self.model.n_layers)
        labels = [*map(str, heads), *(f"MLP {layer}" for layer in layers), "embedding", "biases"]
        columns = [parts["attribution"], parts["mlp"], parts["embedding"][:, None], parts["bias"][:, None]]
        values = np.concatenate([part.double().numpy() for part in columns], 1).T
        table = means(labels, values, self.prompts)
        largest = np.argsort(-np.abs(table["estimate"].to_numpy()), kind="stable")[:COMPONENTS_SHOWN]
        shown = table.iloc[largest].sort_values("estimate", ascending=False, kind="stable")
        figure = Forest(
            name="direct_logit_attribution",
            title="Direct logit attribution",
            caption=f"What each component writes at the last position along answer minus foil, the final norm's scale frozen; "
            f"the {len(shown)} largest of {len(table)} that together sum to {values.sum(0).mean():.2f} nats. {self._sample}",
            x_label=UNITS["logit_difference"],
            rows=forest_rows(shown),
            lines={"nothing": 0.0},
            level=LEVEL,
        )
        return Finding(figure, table, values)

    # --- details -----------------------------------------------------------------------------------------------------

    @property
    def _metric(self) -> str:
        return self.study.task.quantity

    @property
    def _unit(self) -> str:
        return UNITS[self.study.task.metric]

    @property
    def _sample(self) -> str:
        if self.split == typed_prompt.TYPED:
            return f"One typed prompt, so no interval; {self.study.task.name}, {self.model.name}."
        clusters = len(set(clusters_of(self.prompts).tolist()))
        return f"{len(self.prompts)} {self.split} prompts in {clusters} clusters of {self.study.task.name}, {self.model.name}."

    def _intervals(self, kind: str) -> str:
        return "" if self.split == typed_prompt.TYPED else f" {LEVEL:.0%} {kind} intervals."

    def _run(self, variants: Sequence[Variant]) -> Float[np.ndarray, "variant prompt"]:
        return self.study.run(Sweep(tuple(variants))).logit_diff.astype(float)

    def _by_head(self, what: str) -> Float[np.ndarray, "prompt head"]:
        if what == "attribution":
            direct_logit_attribution.require_linear(self.model)
            return direct_logit_attribution.attribute(self.study, self.prompts)["attribution"].double().numpy()
        if what == "knockout":
            return knockouts.measure(self.study)["effect"].astype(float)
        patched = activation_patching.patch_heads(self.study)
        if what == "denoising":
            return patched.denoised.astype(float) - patched.corrupted[:, None]
        return patched.clean[:, None] - patched.noised.astype(float)

    def _effects(self, asked: Mapping[str, Any], effects: np.ndarray, whole: float, kind: str, what: str) -> Finding:
        table = means(list(asked), effects, self.prompts, share=effects.mean(1) / whole)
        figure = Forest(
            name=kind.replace(" ", "_").replace(",", ""),
            title=f"{kind.capitalize()} of {', '.join(asked) if len(asked) < 4 else f'{len(asked)} sets of heads'}",
            caption=f"{what[0].upper()}{what[1:]}.{self._intervals('cluster-robust')} {self._sample}",
            x_label=self._unit,
            rows=forest_rows(table),
            lines={"no effect": 0.0},
            level=LEVEL,
        )
        return Finding(figure, table, effects)

    def _ratio(self, kept: np.ndarray, clean: np.ndarray) -> dict[str, float]:
        try:
            ratio = reportable_ratio(kept, clean, clusters_of(self.prompts))
            low, high = ratio.fieller(LEVEL)
        except Insufficient:
            alone = len(clean) == 1 and clean[0] > 0  # a ratio on one prompt is a number without an interval
            return {"estimate": kept[0] / clean[0] if alone else np.nan, "low": np.nan, "high": np.nan}
        return {"estimate": ratio.value, "low": low, "high": high}

    def _recipes(self, recipe: str | Recipe) -> list[Recipe]:
        if isinstance(recipe, Recipe):
            return [recipe]
        if recipe not in PRIMARY_RECIPES:
            raise UserError(f"recipe={recipe} is unknown; use {', '.join(PRIMARY_RECIPES)}")
        typed_prompt.require_recipe(self.study, recipe)
        return ablation_battery.recipes(self.study, recipe)

    def _asked(self, heads: Question) -> dict[str, tuple[Node, ...]]:
        """{label: nodes} of a question. UserError if it names no nodes, an unknown name, or a node outside the model."""
        if isinstance(heads, Mapping) and not heads:
            raise UserError("no heads are named; name at least one, for example L0H0")
        if isinstance(heads, Mapping):
            return {str(label): self._nodes(named) for label, named in heads.items()}
        if isinstance(heads, str | Node | Circuit):
            return {heads.name if isinstance(heads, Circuit) else str(heads): self._nodes(heads)}
        if not isinstance(heads, Iterable):
            raise UserError(
                f"{heads!r} names no heads; write for example L2H1, a role's name, circuit, or a list of these"
            )
        heads = list(heads)
        _require_no_numbers(heads)
        return {", ".join(map(str, heads)): self._nodes(heads)}

    def _nodes(self, named: Heads) -> tuple[Node, ...]:
        """The named nodes without duplicates: heads in (layer, head) order, then MLPs."""
        if isinstance(named, Node):
            self.model.require(named)
            return (named,)
        if isinstance(named, Circuit):
            return named.check(self.model.n_layers, self.model.n_heads, (*self.prompts.positions, CHANGED)).nodes
        if isinstance(named, str):
            return self._named(named)
        if not isinstance(named, Iterable):
            raise UserError(f"{named!r} names no head; write for example L2H1, M3 for an MLP, or a role's name")
        named = list(named)
        _require_no_numbers(named)
        found = tuple(sorted({node for one in named for node in self._nodes(one)}))
        if not found:
            raise UserError("no heads are named; name at least one, for example L0H0")
        return found

    def _named(self, name: str) -> tuple[Node, ...]:
        roles = {} if self.study.circuit is None else self.study.circuit.roles
        if name == CIRCUIT:
            return self.circuit.nodes
        for role in (name, name.strip().replace(" ", "_")):  # "answer promoter", as the report writes it
            if role in roles:
                return tuple(sorted(roles[role].nodes))
        if node_names.read(name) is None:
            raise UserError(
                f"heads {name!r} are not a role of the circuit; use a head such as L0H0, {CIRCUIT}, or one of "
                f"{', '.join(roles) or 'no roles'}"
            )
        node = parse_node(name)
        self.model.require(node)
        return (node,)

    def _scope(self, nodes: Sequence[Node]) -> tuple[Node, ...]:
        """The nodes of which all but `nodes` are ablated: all heads.

        All MLPs are included if some are in `nodes`, or if `nodes` are those of a circuit that judges MLPs.
        """
        circuit = self.study.circuit
        meant = circuit is not None and circuit.judges_mlps and set(nodes) == set(circuit.nodes)
        meant = meant or any(node.kind == "mlp" for node in nodes)
        return (*self.model.heads, *(mlp(layer) for layer in range(self.model.n_layers) if meant))

    def _prompt(self, row: int) -> PromptSet:
        if not isinstance(row, int | np.integer) or not 0 <= row < len(self.prompts):
            raise UserError(f"prompt {row} is not there; use 0 to {len(self.prompts) - 1}")
        return self.prompts.select([row])

    def _length(self, row: int) -> int:
        return int(self.prompts.end[row]) + 1

    def _text(self, ids: Any) -> str:
        return self.model.tokenizer.decode(ids.tolist())


def _require_no_numbers(heads: Sequence[Any]) -> None:
    """UserError for numbers in the place of names, such as (2, 1) for L2H1."""
    if heads and all(isinstance(one, Integral) for one in heads):
        pair = f"L{heads[0]}H{heads[1]}" if len(heads) == 2 else "L2H1"
        raise UserError(
            f"({', '.join(map(str, heads))}) names no heads; write a head as {pair}, several as a list of such names"
        )


def _mean_of_draws(rows: Sequence[np.ndarray], draws: int) -> Float[np.ndarray, "question prompt"]:
    """The mean over draws for each question; `rows` are ordered by question, with all draws of a question together."""
    return np.stack(rows).reshape(-1, draws, len(rows[0])).mean(1)
