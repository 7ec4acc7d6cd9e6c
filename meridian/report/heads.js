// One head is selected at a time: its panel is open, its mentions are marked everywhere, the address restores it.
const selectionListeners = [];
let selected = null, panelOpener = null, openedAt = null;

function select(name) {
  if (name !== null && !DATA.heads.includes(name)) return;
  if (name === selected) return;
  const panel = document.getElementById("panel");
  if (name !== null && selected === null) {
    panelOpener = document.activeElement;
    openedAt = panelOpener.closest("figure, .graph, tr, li, p, h2, h3, section");
  }
  const letGo = (name === null) !== (selected === null) ? held(openedAt) : () => {};
  selected = name;
  panel.hidden = name === null;
  document.body.classList.toggle("with-panel", name !== null);
  if (name !== null && phone.matches) lift(panelOpener, panel); else letGo();
  if (name !== null) {
    fillPanel(panel, name);
    panel.scrollTop = 0;
    panel.focus({ preventScroll: true });
  }
  for (const link of document.querySelectorAll("a.head")) {
    link.classList.toggle("selected", name !== null && link.getAttribute("href") === `#head=${name}`);
  }
  const any = document.getElementById("any-head");
  if (any) any.value = name ?? "";
  for (const listener of selectionListeners) listener(name);
}

// The panel changes the width of the page, so all above reflows. What was clicked stays where it is: the returned function scrolls it back.
function held(place) {
  const { top, bottom } = place?.getBoundingClientRect() ?? {};
  if (!place?.isConnected || top > innerHeight || bottom < 0) return () => {};
  const back = () => scrollBy({ top: place.getBoundingClientRect().top - top, behavior: "instant" });
  return () => { back(); requestAnimationFrame(() => requestAnimationFrame(back)); };  // figures are drawn anew in between
}

// On a phone the panel is a sheet over the lower half of the page: what was tapped is scrolled into the middle of the upper half.
function lift(place, sheet) {
  const { top, bottom } = place.getBoundingClientRect(), edge = sheet.getBoundingClientRect().top;
  if (place !== document.body && bottom > edge) scrollBy({ top: (top + bottom - edge) / 2, behavior: "instant" });
}

function choose(name) {
  if (fragment().head === name) select(name); else location.hash = `head=${name}`;
}

function closePanel() {
  const name = selected;
  select(null);
  rewrite({ head: "" });
  const again = document.querySelector(`.graph.large [data-node="${name}"]`);  // drawn anew, if its width has changed
  (panelOpener?.isConnected ? panelOpener : again)?.focus({ preventScroll: true });
}

function fillPanel(panel, name) {
  const index = DATA.heads.indexOf(name), role = DATA.roles[name];
  const beside = step => DATA.heads[(index + step + DATA.heads.length) % DATA.heads.length];
  panel.replaceChildren(
    element("div", { class: "bar" },
      element("h2", { id: "panel-title" }, name, element("small", {}, role ? words(role.role) : "outside the claim")),
      element("button", { type: "button", "aria-label": `Previous head, ${beside(-1)}`, onclick: () => choose(beside(-1)) }, "‹"),
      element("button", { type: "button", "aria-label": `Next head, ${beside(1)}`, onclick: () => choose(beside(1)) }, "›"),
      element("button", { type: "button", class: "close", "aria-label": "Close the panel", onclick: closePanel }, "×")),
    section("Role", role
      ? [element("p", {}, `${words(role.role)}${role.assigned ? `, assigned by ${role.assigned}` : ""}.`),
         element("p", { class: "evidence" }, withHeads(role.evidence || "No evidence is stored for it."))]
      : [element("p", {}, "The claim does not name it.")]),
    section("Effects by method", [effectTable(index, true)]),
    section("Other measurements", [effectTable(index, false)]),
    section("Attention from the last position", attentionRows(index)),
    section("Edges", edgeTables(name)),
    section("Verdicts that use it", verdictList(name)),
  );
}

function section(title, content) {
  const kept = content.filter(Boolean);
  return element("section", { "aria-label": title }, element("h3", {}, title), kept.length ? kept : element("p", {}, "None."));
}

function effectTable(index, effect) {
  const rows = DATA.methods.filter(method => method.effect === effect && method.values[index] !== null);
  if (!rows.length) return null;
  const columns = ["", "value [95 %]", `rank of ${DATA.heads.length}`];
  return element("table", { class: "plain" },
    element("thead", {}, element("tr", {}, columns.map(title => element("th", { scope: "col" }, title)))),
    element("tbody", {}, rows.map(method => element("tr", {},
      element("th", { scope: "row" }, method.title, element("small", {}, method.unit)),
      element("td", { class: "number" }, sourced(threeDigits(method.values[index]), method.file, `${method.field}[${index}]`, method.made),
        ...intervalAfter(method.low[index], method.high[index])),
      element("td", { class: "number" }, method.ranks[index] === null ? "–" : ordinal(method.ranks[index]))))));
}

function attentionRows(index) {
  return DATA.attention.examples.map((example, place) => {
    const last = example.tokens.length - 1, weights = example.patterns[index][last];
    const strongest = weights.indexOf(Math.max(...weights));
    return element("div", { class: "attended" },
      element("p", { class: "tokens small", "aria-label": `Prompt ${place + 1}` }, example.tokens.map((token, key) => element("span",
        { class: "token", style: `--weight: ${Math.round(100 * weights[key])}%`, title: `${threeDigits(weights[key])}` },
        element("bdi", {}, shownToken(token))))),
      element("p", { class: "from" }, `Prompt ${place + 1}: most to “${tokenAt(example.tokens, strongest)}”, `,
        sourced(threeDigits(weights[strongest]), DATA.attention.file,
          `data.examples[${place}].pattern[${index}][${last}][${strongest}]`), "."));
  });
}

function edgeTables(name) {
  const sides = [["In", edge => edge.to === name, edge => edge.from], ["Out", edge => edge.from === name, edge => edge.to]];
  return sides.map(([title, mine, other]) => {
    const edges = DATA.graph.edges.filter(mine).reverse();
    if (!edges.length) return null;
    return element("table", { class: "plain" },
      element("thead", {}, element("tr", {}, [`${title}: ${edges.length}`, "input", "effect [95 %]"].map(text => element("th", { scope: "col" }, text)))),
      element("tbody", {}, edges.map(edge => element("tr", { class: edge.uncertain ? "uncertain" : null },
        element("th", { scope: "row" }, headLink(other(edge))), element("td", {}, edge.input || "–"),
        element("td", { class: "number" }, sourced(threeDigits(edge.weight), DATA.graph.file, `data.noising[${edge.row}][*]`,
          "mean over the stored prompts"), ...intervalAfter(edge.low, edge.high))))));
  });
}

function verdictList(name) {
  const found = DATA.verdicts[name] ?? [];
  return [found.length ? element("ul", {}, found.map(one => element("li", {},
    sourced(one.metric, one.json, one.field), one.verdict ? ` ${one.verdict}` : "", ": ", withHeads(one.text)))) : null];
}

function listHeads() {
  const any = document.getElementById("any-head");
  if (!any) return;
  any.append(element("option", { value: "" }, "choose"));
  for (const name of DATA.heads) {
    const role = DATA.roles[name];
    any.append(element("option", { value: name }, role ? `${name} (${words(role.role)})` : name));
  }
  any.hidden = false;
  any.addEventListener("change", () => any.value ? choose(any.value) : closePanel());
}
