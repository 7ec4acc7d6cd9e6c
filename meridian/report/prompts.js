// Every prompt as a table that sorts and filters; first those on which the circuit alone is farthest from the model.
const COLUMNS = {
  text: { title: "prompt", value: row => row.text ?? row.names },
  template: { title: "template", value: row => row.template },
  clean: { title: "D", value: row => row.clean, down: true },
  circuit: { title: "circuit alone", value: row => row.circuit },
  lost: { title: "lost", value: row => row.lost === null ? null : Math.abs(row.lost), down: true },  // too much is as wrong as too little
  kept: { title: "kept", value: row => row.kept === null ? null : Math.abs(row.kept - 1), down: true },
  correct: { title: "model correct", value: row => Number(row.correct) },
};

function promptRows() {
  const prompts = DATA.prompts;
  return prompts.id.map((id, place) => ({
    place, id, split: prompts.split[place], template: prompts.template[place], names: prompts.names[place], text: prompts.text[place],
    answer: prompts.answer[place], foil: prompts.foil[place], clean: prompts.clean[place], circuit: prompts.circuit[place],
    correct: prompts.correct[place],
    lost: prompts.clean[place] === null || prompts.circuit[place] === null ? null : prompts.clean[place] - prompts.circuit[place],
    kept: prompts.clean[place] > 0 && prompts.circuit[place] !== null ? prompts.circuit[place] / prompts.clean[place] : null,
  }));
}

function startPrompts() {
  const box = document.getElementById("prompt-browser");
  if (!box || !DATA.prompts.id.length) return;
  const [template, split] = ["prompt-template", "prompt-split"].map(id => document.getElementById(id));
  const show = browse({
    table: document.querySelector("table.prompts"), columns: COLUMNS, rows: promptRows(), order: { key: "lost", down: true },
    filters: [{ choice: template, value: row => row.template, all: "all templates" }, { choice: split, value: row => row.split, all: "all prompts" }],
    element: promptRow, more: document.getElementById("prompt-more"), say: sayPrompts,
  });
  box.hidden = false;
  show();
}

function sayPrompts(shown, kept) {
  const wrong = kept.filter(row => !row.correct).length;
  document.getElementById("prompt-count").textContent = `${shown.length} of ${kept.length} prompts, on ${wrong} of which the model is wrong. ` +
    `D: ${DATA.unit} of the whole model; circuit alone: all other heads ${words(DATA.prompts.recipe)}-ablated; lost: the difference, sorted by its size; kept: the share of D, sorted by its distance from 1.`;
}

function promptRow(row) {
  const { baseline, battery, conditions } = DATA.prompts;
  const alone = conditions.length === 1 ? `data.logit_diff[${conditions[0]}][${row.place}]` : `data.logit_diff[*][${row.place}]`;
  const made = conditions.length === 1 ? "" : `mean over the conditions ${conditions.join(", ")}`;
  const cell = (label, ...content) => element("td", { "data-label": label, class: "number" }, content);
  const whole = `D of the same prompt, data.clean_logit_diff[${row.place}] of ${baseline}`;
  const derived = (value, how) => value === null ? "–" : sourced(number(value), battery, alone, [made, how].filter(Boolean).join("; "));
  const number = value => value === null ? "–" : value.toFixed(2);
  return element("tr", { "data-id": row.id },
    element("th", { scope: "row" }, element("bdi", {}, row.text ?? row.names),
      element("small", {}, row.text === null ? "text not stored" : "answer ", element("bdi", {}, row.answer ?? ""),
        row.foil === null ? "" : ", foil ", element("bdi", {}, row.foil ?? ""))),
    element("td", { "data-label": "template" }, element("bdi", {}, words(row.template))),
    cell("D", sourced(number(row.clean), baseline, `data.clean_logit_diff[${row.place}]`)),
    cell("circuit alone", sourced(number(row.circuit), battery, alone, made)),
    cell("lost", derived(row.lost, `${whole} less this`)),
    cell("kept", derived(row.kept, `this divided by ${whole}`)),
    element("td", { "data-label": "model correct" }, row.correct ? "yes" : element("strong", {}, "no")));
}
