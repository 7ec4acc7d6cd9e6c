// The note about one number: its file, its field, how it was made from that, and the line of Python that reads it.
let sourceOpener = null;
const SENTENCE = /(^|\.)(reasons?|needs)(\[\d+\])?$|^headline\.\w+$/;  // fields of words

function pathIn(field) {
  return field.replace(/\["[^"]*"\]|(?:^|\.)([A-Za-z_][\w ,:/-]*)/g, (found, name) => name ? `["${name}"]` : found);  // "a.b" stays
}

// Results have a row for every prompt; a mean over the evaluation prompts is of those that result 01 puts into that split.
function pythonLine(file, field, made) {
  const path = pathIn(field);
  const at = path.indexOf("[*]");
  if (at < 0) return `import json; print(json.load(open("${file}"))${path})`;
  const [before, after] = [path.slice(0, at), path.slice(at + 3)];
  const rows = `json.load(open("${file}"))${before}`;
  if (made !== DATA.over_prompts || !DATA.prompts) return `import json; print([row${after} for row in ${rows}])`;
  const splits = `json.load(open("${DATA.prompts.baseline}"))["data"]["split"]`;
  return `import json, statistics; print(statistics.mean(row${after} for row, split in zip(${rows}, ${splits}) if split == "evaluation"))`;
}

// A JSON file of this folder, of one below it or of one beside it ("../suites/..."); no other address.
function isBeside(file) {
  const own = (file ?? "").replace(/^(\.\.\/){1,2}/, ""), parts = own.split("/");
  return (own === file || parts.length > 1) && parts.at(-1).endsWith(".json") && parts.every(part => /^[^"\\:?#%]+$/.test(part) && part !== "." && part !== "..");
}

// Names, places and quoted names, nothing else: a line of Python is made of them, and an address can come from anybody.
function isField(field) {
  return /^(?:[A-Za-z_][\w ,:/-]*)?(?:\.[A-Za-z_][\w ,:/-]*|\[(?:\d+|\*)\]|\["[^"\\]*"\])*$/.test(field);
}

// What links to one number say: the longest, if the others are it with fewer digits; nothing where they say several numbers.
function saidBy(links) {
  const texts = [...new Set(links.map(one => one.textContent.trim()))];
  const longest = texts.reduce((one, other) => other.length > one.length ? other : one, "");
  const alike = text => text === longest || Number(longest).toFixed((text.split(".")[1] ?? "").length) === text;
  return texts.every(alike) ? longest : "";
}

function showSource() {
  const note = document.getElementById("source"), { json, field, made, shown } = fragment();
  if (!isBeside(json) || !isField(field ?? "")) { note.hidden = true; return; }
  if (note.hidden) sourceOpener = document.activeElement;
  const links = [...document.querySelectorAll("a.n")].filter(one => {
    const told = fragment(one.getAttribute("href"));
    return told.json === json && told.field === field && (told.made ?? "") === (made ?? "");
  });
  const texts = links.map(one => one.textContent), alike = saidBy(links);
  const said = links.includes(document.activeElement) ? document.activeElement.textContent : texts.includes(shown) ? shown : alike;
  rewrite({ shown: alike ? "" : said });  // whoever gets the address sees the same of several numbers
  if (selected) rewrite({ head: selected });  // the note is about a number; the panel stays
  note.replaceChildren(
    element("button", { type: "button", class: "close", "aria-label": "Close", onclick: closeSource }, "×"),
    element("h2", { id: "source-title" }, "Where this number stands"),
    element("p", { class: "value" }, said),
    element("dl", {},
      element("dt", {}, "file"), element("dd", {}, element("a", { href: encodeURI(json) }, json), " (beside this report)"),
      element("dt", {}, "field"), element("dd", {}, element("code", {}, field ?? ""), SENTENCE.test(field ?? "") ? " (a sentence that holds the number)" : ""),
      made ? element("dt", {}, "made by") : null, made ? element("dd", {}, made) : null,
      element("dt", {}, !made || made === DATA.over_prompts ? "Python" : "Python, of the field alone"), element("dd", {}, element("code", {}, pythonLine(json, field ?? "", made)))),
  );
  note.hidden = false;
  note.focus({ preventScroll: true });
}

function closeSource() {
  document.getElementById("source").hidden = true;
  rewrite({ json: "", field: "", made: "", shown: "" });
  sourceOpener?.focus?.({ preventScroll: true });
}
