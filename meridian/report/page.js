// What every part of the page uses: the run's data, elements, numbers, tokens, the theme.
const DATA = JSON.parse(document.getElementById("data").textContent);
for (const run of DATA.attention.examples.flatMap(example => [example, example.corrupted ?? []]).flat()) {
  run.patterns = run.patterns.map(rows => rows.map(row => row.map(thousandths => thousandths / 1000)));
}
const INK = "#1f2933", INK_IN_THE_DARK = "#e6eaf0";
const WHITE_SPACE = { "\n": "⏎", "\r": "␍", "\t": "⇥", " ": "␣" };
const SVG = "http://www.w3.org/2000/svg";
const phone = matchMedia("(max-width: 46rem)");  // as in the style
const darkSystem = matchMedia("(prefers-color-scheme: dark)");
const themeListeners = [];

// An element with attributes (on... are listeners) and children; a string child is text, never markup.
function element(name, attributes = {}, ...children) {
  const made = SVG_NAMES.has(name) ? document.createElementNS(SVG, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value === true) made.setAttribute(key, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(key, value);
  }
  made.append(...children.flat().filter(child => child !== null && child !== undefined && child !== ""));
  return made;
}
const SVG_NAMES = new Set(["svg", "g", "path", "circle", "rect", "text", "line", "title"]);

// Three significant digits, as the tables of figures write them.
function threeDigits(value) {
  return value === null || value === undefined ? "–" : String(Number(value.toPrecision(3)));
}

function intervalText(low, high) {
  return low === null || high === null ? "" : ` [${threeDigits(low)}, ${threeDigits(high)}]`;
}

// The same after a number, in one piece.
function intervalAfter(low, high) {
  const text = intervalText(low, high).trim();
  return text ? [" ", element("span", { class: "interval" }, text)] : [];
}

function ordinal(place) {
  const ending = [11, 12, 13].includes(place % 100) ? "th" : { 1: "st", 2: "nd", 3: "rd" }[place % 10] ?? "th";
  return `${place}${ending}`;
}

function words(name) {
  return name.replaceAll("_", " ");
}

function shownToken(token) {
  return [...token].map(c => WHITE_SPACE[c] ?? (/[\p{C}\p{Z}]/u.test(c) ? `\\u${c.codePointAt(0).toString(16).padStart(4, "0")}` : c)).join("");
}

// The token at a place; with its number, from 1, if the prompt has the same token elsewhere.
function tokenAt(tokens, place) {
  const text = shownToken(tokens[place]);
  return tokens.filter(token => token === tokens[place]).length > 1 ? `${text} #${place + 1}` : text;
}

function headLink(name) {
  return DATA.heads.includes(name) ? element("a", { class: "head", href: `#head=${name}` }, name) : name;
}

// Text with every mention of a head of the model as a link.
function withHeads(text) {
  return text.split(/\b(L\d+H\d+)\b/).map(part => /^L\d+H\d+$/.test(part) ? headLink(part) : part);
}

// A number that says where it stands.
function sourced(text, json, field, made = "") {
  return element("a", { class: "n", href: address({ json, field, made }) }, text);
}

// What `fragment` reads back; without a part that is empty.
function address(told) {
  const parts = Object.entries(told).filter(([, value]) => value).map(([key, value]) => `${key}=${encodeURIComponent(value)}`);
  return parts.length ? `#${parts.join("&")}` : "";
}

function fragment(text = location.hash) {
  const found = {};
  for (const part of text.slice(1).split("&")) {
    const at = part.indexOf("=");
    if (at < 0) continue;
    try { found[part.slice(0, at)] = decodeURIComponent(part.slice(at + 1)); } catch { /* no address of this page */ }
  }
  return found;
}

// The address with other parts, "" for one that goes; the page stays where it is.
function rewrite(parts) {
  history.replaceState(null, "", address({ ...fragment(), ...parts }) || location.pathname + location.search);
}

function scheme() {
  return document.documentElement.dataset.theme ?? (darkSystem.matches ? "dark" : "light");
}

function stored(value) {
  try {
    if (value === undefined) return localStorage.getItem("meridian-theme");
    if (value === null) localStorage.removeItem("meridian-theme"); else localStorage.setItem("meridian-theme", value);
  } catch { /* a page from a disk may have no storage: the choice lasts as long as the page */ }
  return value;
}

function switchTheme() {
  const button = document.getElementById("theme"), order = [null, "light", "dark"];
  const set = value => {
    if (value) document.documentElement.dataset.theme = value; else delete document.documentElement.dataset.theme;
    button.textContent = `Theme: ${value ?? "system"}`;
    for (const listener of themeListeners) listener();
  };
  const before = stored();
  set(before === "light" || before === "dark" ? before : null);
  button.hidden = false;
  button.addEventListener("click", () => {
    const next = order[(order.indexOf(document.documentElement.dataset.theme ?? null) + 1) % order.length];
    stored(next);
    set(next);
  });
  darkSystem.addEventListener("change", () => { for (const listener of themeListeners) listener(); });
}
