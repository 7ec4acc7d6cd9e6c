// The circuit as a graph one can ask: heads by layer, edges by effect, one head's edges alone, roles folded into one disc.
const DASH = { q: "7 4", k: "2 4", v: null, "": null };
const INPUTS = { q: "into queries (dashed)", k: "into keys (dotted)", v: "into values (solid)", "": "into the logits" };
const BEND = { q: -.22, k: 0, v: .22, "": 0 };
const SIDE = 50, EDGES = 12, GAP = { least: 36, most: 96 }, DISC = { least: 15, most: 26 };  // pixels
const SMALLEST = .75;  // of a graph that is wider than its place; one that would have to be smaller scrolls
const LETTER = 8, HALF_LETTER = 3.2;  // of a name in a box, and of one that its disc holds
const LAYER = { large: 104, small: 78, least: 36 }, GLANCE = { desk: 360, phone: 130 };  // the height of a layer, and of all in the small graph
const EDGE = { thinnest: 1.2, thickest: 8 };
const graphs = [];
const asked = { threshold: DATA.graph.faint, uncertain: false, inputs: new Set(["q", "k", "v", ""]), folded: new Set() };

function startGraphs() {
  for (const place of document.querySelectorAll("[data-graph]")) {
    const large = place.dataset.graph === "large";
    graphs.push({ place, large, view: large ? asked : { ...asked, inputs: new Set(asked.inputs), folded: new Set() } });
  }
  addControls();
  const drawAll = () => graphs.forEach(drawGraph);
  drawAll();
  let width = innerWidth;
  addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; drawAll(); } });
  selectionListeners.push(() => graphs.forEach(markSelected));
}

// Nodes and edges as they are asked for: folded roles are one node, and their edges to the same input are added up.
function visible(view) {
  const seen = node => view.folded.has(node.role) && node.name !== node.role ? `${words(node.role)}` : node.name;
  const names = Object.fromEntries(DATA.graph.nodes.map(node => [node.name, seen(node)]));
  const nodes = new Map();
  for (const node of DATA.graph.nodes) {
    const name = names[node.name], group = nodes.get(name);
    if (!group) nodes.set(name, { ...node, name, members: [node.name], row: node.layer, folded: name !== node.name });
    else { group.members.push(node.name); group.layer += node.layer; group.x += node.x; group.share = Math.max(group.share, node.share); }
  }
  for (const node of nodes.values()) {
    const count = node.members.length;
    if (count > 1) { node.row = Math.round(node.layer / count); node.x /= count; node.y = node.row; }
  }
  const edges = new Map();
  for (const edge of DATA.graph.edges) {
    const from = names[edge.from], to = names[edge.to], key = [from, to, edge.input].join("|");
    if (from === to || !view.inputs.has(edge.input) || (edge.uncertain && !view.uncertain)) continue;
    const before = edges.get(key);
    if (!before) edges.set(key, { ...edge, from, to });
    else Object.assign(before, { weight: before.weight + edge.weight, low: null, high: null, uncertain: before.uncertain && edge.uncertain });
  }
  const limit = view.threshold * DATA.graph.largest;
  const kept = [...edges.values()].filter(edge => Math.abs(edge.weight) >= limit);
  return { nodes: [...nodes.values()], edges: kept.sort((a, b) => Math.abs(a.weight) - Math.abs(b.weight)) };
}

function lay(nodes, width) {
  const rows = new Map();
  for (const node of nodes) rows.set(node.row, [...(rows.get(node.row) ?? []), node]);
  const levels = [...rows.keys()].sort((a, b) => a - b);
  const sum = (row, gap) => row.reduce((total, node) => total + room(node, gap), 0);
  const widest = gap => Math.max(...[...rows.values()].map(row => sum(row, gap)));
  const most = Math.max(...[...rows.values()].map(row => row.length));
  const name = Math.max(...[...rows.values()].flat().map(node => node.folded ? 0 : node.name.length));
  const gap = Math.min(GAP.most, Math.max(GAP.least, 2 * HALF_LETTER * name + EDGES / 2, (width - SIDE - EDGES) / most));
  return { rows, levels, gap, full: Math.max(width, SIDE + widest(gap) + EDGES) };
}

function label(node) {
  return node.folded ? `${node.name} (${node.members.length})` : node.name;
}

// Pixels that a node has to itself in its row: a folded role holds its name.
function room(node, gap) {
  return node.folded ? Math.max(gap, LETTER * label(node).length + EDGES) : gap;
}

function drawGraph(graph) {
  const { place, large, view } = graph;
  graph.width = place.clientWidth;
  const { nodes, edges } = visible(view), { rows, levels, gap, full } = lay(nodes, place.clientWidth || 320);
  const height = large ? LAYER.large : Math.max(LAYER.least, Math.min(LAYER.small, (phone.matches ? GLANCE.phone : GLANCE.desk) / levels.length));
  const bottom = height * (levels.length - .5), at = {};
  for (const [level, row] of rows) {
    let left = SIDE + (full - SIDE - EDGES - row.reduce((total, node) => total + room(node, gap), 0)) / 2;
    for (const node of row.sort((a, b) => a.x - b.x)) {
      const shift = (node.y - node.row) * height;
      at[node.name] = [left + room(node, gap) / 2, bottom - levels.indexOf(level) * height - shift];
      left += room(node, gap);
    }
  }
  const layerNames = levels.map((level, place) => element("text", { class: "layer", x: 0, y: bottom - place * height + 4 },
    level === DATA.graph.layers ? "logits" : `layer ${level}`));
  const tall = height * levels.length + 2 * EDGES;
  const shrunk = full > place.clientWidth && full * SMALLEST <= place.clientWidth ? place.clientWidth / full : 1;
  const svg = element("svg", { viewBox: `0 ${-EDGES} ${full} ${tall}`, width: full * shrunk, height: tall * shrunk },
    layerNames, edges.map(edge => edgeElement(edge, at, gap)), nodes.map(node => nodeElement(node, at[node.name], large, height)));
  const focused = place.contains(document.activeElement) ? document.activeElement.dataset.node : null;
  place.replaceChildren(svg);
  if (large) place.append(inputRow());
  isolate(place, null);
  if (focused) place.querySelector(`[data-node="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
  if (large) {
    const uncertain = DATA.graph.edges.filter(edge => edge.uncertain).length;
    place.dataset.edges = edges.length;
    const said = document.getElementById("graph-said");
    const drawn = view.folded.size ? `${edges.length} edges, with those of folded roles added up` : `${edges.length} of ${DATA.graph.edges.length} edges`;
    if (said) said.dataset.rest = `${drawn}; ${uncertain} have an interval that holds 0` +
      `${view.uncertain ? "" : " and are hidden"}.`;
    tell(null);
  }
}

// Marks the selected head; draws anew only where the panel has changed the width.
function markSelected(graph) {
  if (graph.place.clientWidth !== graph.width) drawGraph(graph);
  for (const node of graph.place.querySelectorAll(".node")) {
    node.classList.toggle("selected", selected !== null && node.dataset.members.split(" ").includes(selected));
  }
  isolate(graph.place, null);
}

function edgeElement(edge, at, gap) {
  const [[x0, y0], [x1, y1]] = [at[edge.from], at[edge.to]];
  const middle = [(x0 + x1) / 2 + BEND[edge.input] * gap, (y0 + y1) / 2];
  const share = Math.min(1, Math.abs(edge.weight) / (DATA.graph.largest || 1));
  const path = `M${x0} ${y0}Q${middle[0]} ${middle[1]} ${x1} ${y1}`;
  const sign = edge.weight >= 0 ? "helps" : "opposes";
  return element("g", { class: `edge ${sign}${edge.uncertain ? " uncertain" : ""}`, "data-from": edge.from, "data-to": edge.to, "data-input": edge.input },
    element("path", { d: path, "stroke-width": (EDGE.thinnest + (EDGE.thickest - EDGE.thinnest) * share).toFixed(2), "stroke-dasharray": DASH[edge.input] }),
    element("path", { class: "hit", d: path, onpointerenter: () => tell(edgeText(edge)), onpointerleave: () => tell(null) },
      element("title", {}, edgeText(edge))));
}

function edgeText(edge) {
  const into = edge.input ? ` (${edge.input})` : "";
  return `${edge.from} to ${edge.to}${into}: ${threeDigits(edge.weight)} ${DATA.graph.unit}${intervalText(edge.low, edge.high)}`;
}

function nodeElement(node, [x, y], large, height) {
  const { folded } = node, isHead = DATA.heads.includes(node.name);
  const text = label(node), least = Math.max(DISC.least, HALF_LETTER * text.length + 1);
  const most = Math.max(least, Math.min(large ? DISC.most : .8 * DISC.most, height / 2));
  const radius = Math.sqrt(least ** 2 + (most ** 2 - least ** 2) * node.share);  // the area grows with the effect
  const open = isHead ? () => choose(node.name) : folded ? () => fold(node.role) : null;
  const said = folded ? `${text}, unfold` : `${node.name}, ${words(node.role)}`;
  const wide = Math.max(26, LETTER * text.length);
  const shape = folded || !isHead
    ? element("rect", { x: x - wide / 2, y: y - 13, width: wide, height: 26, rx: 8, fill: node.fill })
    : element("circle", { cx: x, cy: y, r: radius.toFixed(1), fill: node.fill });
  const title = element("text", { x, y: y + 4, "text-anchor": "middle" }, text);
  const alone = event => isolate(event.currentTarget.closest(".graph"), node.name);
  const together = event => isolate(event.currentTarget.closest(".graph"), null);
  const actions = open ? {  // a listener for the focus would make the Tab key stop at any node
    tabindex: 0, role: "button", onclick: open, onfocus: alone, onblur: together,
    onkeydown: event => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); open(); } },
  } : { role: "img" };
  return element("g", {
    class: `node${node.members.includes(selected) ? " selected" : ""}`, "data-node": node.name, "data-members": node.members.join(" "), "aria-label": said, ...actions,
    onpointerenter: alone, onpointerleave: together,
  }, shape, title);
}

// Only the edges of one node in full; without a node, those of the selected head, or all.
function isolate(place, name) {
  if (!place) return;
  const shown = name ?? place.querySelector(".node.selected")?.dataset.node ?? null;
  place.classList.toggle("isolating", shown !== null);
  const kept = new Set([shown]);
  for (const edge of place.querySelectorAll(".edge")) {
    const own = edge.dataset.from === shown || edge.dataset.to === shown;
    edge.classList.toggle("kept", own);
    if (own) kept.add(edge.dataset.from).add(edge.dataset.to);
  }
  for (const node of place.querySelectorAll(".node")) node.classList.toggle("kept", kept.has(node.dataset.node));
  if (place.dataset.graph === "large") lookFrom(place, shown);
}

// The tokens of the first prompt, coloured by where the isolated head looks from the last of them.
function inputRow() {
  const example = DATA.attention.examples[0];
  if (!example) return "";
  const names = {};
  for (const [name, places] of Object.entries(example.positions)) {
    for (const place of [places].flat()) names[place] = [names[place], name].filter(Boolean).join(", ");
  }
  return element("p", { class: "tokens inputs", role: "group", "aria-label": "Input tokens of prompt 1" },
    element("span", { class: "tag" }, "input"),
    example.tokens.map((token, place) => element("span", { class: "token" }, element("bdi", {}, shownToken(token)),
      names[place] ? element("small", {}, words(names[place])) : "")));
}

function lookFrom(place, name) {
  const example = DATA.attention.examples[0], index = DATA.heads.indexOf(name);
  const weights = example && index >= 0 ? example.patterns[index][example.tokens.length - 1] : null;
  place.querySelectorAll(".inputs .token").forEach((token, key) =>
    token.style.setProperty("--weight", weights ? `${Math.round(100 * weights[key])}%` : "0%"));
}

function tell(text) {
  const said = document.getElementById("graph-said");
  if (said) said.textContent = text ?? said.dataset.rest ?? "";
}

function fold(role) {
  if (!asked.folded.delete(role)) asked.folded.add(role);
  document.querySelector(`[data-role="${CSS.escape(role)}"]`)?.setAttribute("aria-pressed", asked.folded.has(role));
  redrawLarge();
}

function redrawLarge() {
  graphs.filter(graph => graph.large).forEach(drawGraph);
}

function addControls() {
  const controls = document.getElementById("circuit-controls");
  if (!controls) return;
  const roles = new Map(DATA.graph.nodes.filter(node => node.name !== node.role).map(node => [node.role, node.fill]));
  const present = new Set(DATA.graph.edges.map(edge => edge.input));
  const limit = element("output", {});
  const showLimit = () => { limit.textContent = `${threeDigits(asked.threshold * DATA.graph.largest)} ${DATA.graph.unit}`; };
  const check = (label, checked, change) => element("label", { class: "check" },
    element("input", { type: "checkbox", checked, onchange: event => { change(event.target.checked); redrawLarge(); } }), ` ${label}`);
  controls.append(
    element("span", { class: "chips", role: "group", "aria-label": "Roles, folded by a click" }, [...roles].map(([role, fill]) => element("button",
      { type: "button", "data-role": role, "aria-pressed": "false", title: "fold or unfold", onclick: () => fold(role) },
      element("span", { class: "swatch", style: `background: ${fill}` }), words(role)))),
    ...Object.entries(INPUTS).filter(([input]) => present.has(input)).map(([input, label]) =>
      check(label, true, on => on ? asked.inputs.add(input) : asked.inputs.delete(input))),
    ...(DATA.graph.edges.length ? [
      element("label", {}, "Edges of at least ", element("input", {
        type: "range", id: "edge-threshold", min: 0, max: .5, step: .01, value: asked.threshold,
        oninput: event => { asked.threshold = Number(event.target.value); showLimit(); redrawLarge(); },
      }), " ", limit),
      check("show uncertain", false, on => { asked.uncertain = on; }),
      element("span", { class: "signs" }, element("span", { class: "helps" }, "— helps the answer"), " ", element("span", { class: "opposes" }, "— opposes it")),
    ] : []),
  );
  showLimit();
  controls.hidden = false;
}
