"use strict";
// One question to the model: what was typed is sent, and what comes back is told line by line.
const form = document.getElementById("ask");

function element(name, text, kind) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (kind) made.className = kind;
  return made;
}

function tell(text, refused) {
  const state = document.getElementById("state");
  state.textContent = text;
  state.classList.toggle("refused", Boolean(refused));
}

// Never -0.000.
function threeDecimals(value) {
  return (Math.round(value * 1000) / 1000 + 0).toFixed(3);
}

function bar(value, largest) {
  const track = element("div", undefined, "track"), filled = element("i", undefined, value < 0 ? "minus" : "plus");
  const share = largest ? Math.abs(value) / largest * 50 : 0;
  filled.style.width = `${share}%`;
  filled.style.left = value < 0 ? `${50 - share}%` : "50%";
  track.append(filled);
  return track;
}

function show(answer) {
  const place = document.getElementById("answer"), table = element("table"), body = element("tbody");
  const largest = Math.max(...answer.rows.map((row) => Math.abs(row.estimate ?? 0)));
  const rows = [...answer.rows].sort((a, b) => Math.abs(b.estimate ?? 0) - Math.abs(a.estimate ?? 0));
  for (const row of rows) {
    const line = element("tr"), name = element("th", row.label), drawn = element("td", undefined, "bar");
    name.scope = "row";
    line.append(name, element("td", row.estimate === null ? "not reportable" : threeDecimals(row.estimate)), drawn);
    if (row.estimate !== null) drawn.append(bar(row.estimate, largest));
    body.append(line);
  }
  table.append(body);
  place.replaceChildren(
    element("h3", answer.title),
    element("p", `Intact: ${threeDecimals(answer.clean)} on this prompt, ${threeDecimals(answer.corrupted)} on “${answer.pair}”. Below: ${answer.unit}.`),
    table,
    element("p", answer.caption, "soft"),
  );
}

function hear(event) {
  const done = document.getElementById("done");
  if (event.doing) tell(event.doing);
  if (event.total) {
    tell(`${event.done} of ${event.total} forward passes`);
    done.value = event.done / event.total;
  }
  if (event.refused) tell(event.refused, true);
  if (event.answer) {
    tell("Done.");
    show(event.answer);
    seen(document.getElementById("asked"));
  }
}

// What is told stands below the form: the page follows it, and its beginning stays in sight.
function seen(place) {
  const { top, bottom } = place.getBoundingClientRect();
  if (top < 0 || bottom > innerHeight) scrollBy({ top: Math.min(top, bottom - innerHeight), behavior: "instant" });
}

// Patching has a direction and no recipe; keep only needs heads to keep, and begins with the circuit.
function fit() {
  const { kind, recipe, direction, heads } = form.elements;
  recipe.disabled = kind.value === "patch";
  direction.disabled = !recipe.disabled;
  if (kind.value === "keep" && heads.value.trim() === heads.defaultValue) heads.value = "circuit";
}

async function ask(event) {
  event.preventDefault();
  const button = form.querySelector("button"), done = document.getElementById("done");
  button.disabled = true;
  done.hidden = false;
  done.removeAttribute("value");  // moves until forward passes are counted
  document.getElementById("answer").replaceChildren();
  tell("asking");
  seen(document.getElementById("asked"));
  try {
    const sent = { method: "POST", body: JSON.stringify(Object.fromEntries(new FormData(form))) };
    const reader = (await fetch("ask", sent)).body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done: ended } = await reader.read();
      const lines = (rest + (value ?? "")).split("\n");
      rest = ended ? "" : lines.pop();
      lines.filter(Boolean).forEach((line) => hear(JSON.parse(line)));
      if (ended) break;
    }
  } catch (error) {
    tell(`The server does not answer (${error.message}); start it again.`, true);
  }
  button.disabled = false;
  done.hidden = true;
}

if (form) {
  form.addEventListener("submit", ask);
  form.elements.kind.forEach((choice) => choice.addEventListener("change", fit));
  fit();  // a browser restores what was chosen before
  form.elements.run.addEventListener("change", () => {
    Object.entries(form.elements.run.selectedOptions[0].dataset).forEach(([name, text]) => { form.elements[name].value = text; });
  });
}
