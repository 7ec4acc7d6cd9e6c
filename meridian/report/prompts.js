// Every prompt as a table that sorts and filters; first those on which the circuit alone loses most.
const PAGE = 25;
const ORDER = { key: "lost", down: true };
let shownPrompts = PAGE;

const COLUMNS = {
  text: ["prompt", row => row.text ?? row.names],
  template: ["template", row => row.template],
  clean: ["D", row => row.clean],
  circuit: ["circuit alone", row => row.circuit],
  lost: ["lost", row => row.lost],
  correct: ["correct", row => Number(row.correct)],
};

function promptRows() {
  const prompts = DATA.prompts;
  return prompts.id.map((id, place) => ({
    place, id, split: prompts.split[place], template: prompts.template[place], names: prompts.names[place], text: prompts.text[place],
    answer: prompts.answer[place], foil: prompts.foil[place], clean: prompts.clean[place], circuit: prompts.circuit[place],
    correct: prompts.correct[place],
    lost: prompts.clean[place] === null || prompts.circuit[place] === null ? null : prompts.clean[place] - prompts.circuit[place],
  }));
}

function startPrompts() {
  const box = document.getElementById("prompt-browser");
  if (!box || !DATA.prompts.id.length) return;
  const rows = promptRows();
  const fill = (id, all, values) => {
    const choice = document.getElementById(id);
    choice.append(element("option", { value: "" }, all), ...[...new Set(values)].sort().map(value => element("option", { value }, words(value))));
    choice.addEventListener("change", () => { shownPrompts = PAGE; showPrompts(rows); });
  };
  fill("prompt-template", "all templates", DATA.prompts.template);
  fill("prompt-split", "all prompts", DATA.prompts.split);
  document.getElementById("prompt-split").value = DATA.prompts.split.includes("evaluation") ? "evaluation" : "";
  document.querySelector("table.prompts thead tr").replaceChildren(...Object.entries(COLUMNS).map(([key, [title]]) =>
    element("th", { scope: "col", "data-key": key }, element("button", { type: "button", onclick: () => { sortBy(key); showPrompts(rows); } }, title))));
  document.getElementById("prompt-more").addEventListener("click", () => { shownPrompts += PAGE; showPrompts(rows); });
  box.hidden = false;
  showPrompts(rows);
}

function sortBy(key) {
  ORDER.down = ORDER.key === key ? !ORDER.down : !["text", "template", "correct", "circuit"].includes(key);
  ORDER.key = key;
  shownPrompts = PAGE;
}

// Missing values last whichever way; equal ones in the order of the results.
function compare(first, second) {
  const value = COLUMNS[ORDER.key][1], [a, b] = [value(first), value(second)];
  if (a === null || b === null) return (a === null) - (b === null) || first.place - second.place;
  const found = typeof a === "string" ? a.localeCompare(b, "en") : a - b;
  return (ORDER.down ? -found : found) || first.place - second.place;
}

function showPrompts(rows) {
  const template = document.getElementById("prompt-template").value, split = document.getElementById("prompt-split").value;
  const kept = rows.filter(row => (!template || row.template === template) && (!split || row.split === split)).sort(compare);
  const shown = kept.slice(0, shownPrompts);
  document.querySelector("table.prompts tbody").replaceChildren(...shown.map(promptRow));
  for (const heading of document.querySelectorAll("table.prompts th[data-key]")) {
    heading.setAttribute("aria-sort", heading.dataset.key !== ORDER.key ? "none" : ORDER.down ? "descending" : "ascending");
  }
  const wrong = kept.filter(row => !row.correct).length;
  document.getElementById("prompt-count").textContent = `${shown.length} of ${kept.length} prompts, on ${wrong} of which the model is wrong. ` +
    `D: ${DATA.unit} of the whole model; circuit alone: the rest ablated, ${words(DATA.prompts.recipe)}; lost: the difference.`;
  document.getElementById("prompt-more").hidden = shown.length === kept.length;
}

function promptRow(row) {
  const { baseline, battery, conditions } = DATA.prompts;
  const alone = conditions.length === 1 ? `data.logit_diff[${conditions[0]}][${row.place}]` : `data.logit_diff[*][${row.place}]`;
  const made = conditions.length === 1 ? "" : `mean over the conditions ${conditions.join(", ")}`;
  const cell = (label, ...content) => element("td", { "data-label": label, class: "number" }, content);
  const number = value => value === null ? "–" : value.toFixed(2);
  return element("tr", { "data-id": row.id },
    element("th", { scope: "row" }, element("bdi", {}, row.text ?? row.names),
      element("small", {}, row.text === null ? "text not stored" : "answer ", element("bdi", {}, row.answer ?? ""),
        row.foil === null ? "" : ", foil ", element("bdi", {}, row.foil ?? ""))),
    element("td", { "data-label": "template" }, element("bdi", {}, words(row.template))),
    cell("D", sourced(number(row.clean), baseline, `data.clean_logit_diff[${row.place}]`)),
    cell("circuit alone", sourced(number(row.circuit), battery, alone, made)),
    cell("lost", number(row.lost)),
    element("td", { "data-label": "correct" }, row.correct ? "yes" : element("strong", {}, "no")));
}
