// Attention of all heads on one prompt: a small square each; choosing a token shows where every head looks from there.
const TILE = 76;  // pixels across, whatever the number of tokens
let query = null, pinned = null;

function startAttention() {
  const box = document.getElementById("attention"), examples = DATA.attention.examples;
  if (!box || !examples.length) return;
  const prompt = document.getElementById("attention-prompt");
  prompt.append(...examples.map((example, place) => element("option", { value: place },
    `${place + 1}: ${example.tokens.slice(0, 6).map(shownToken).join(" ")} …`)));
  prompt.addEventListener("change", fillAttention);
  const run = document.getElementById("attention-run");
  run.closest("label").hidden = !examples.every(one => one.corrupted);
  run.addEventListener("change", fillAttention);
  document.getElementById("attention-heads").style.setProperty("--heads", Math.max(...DATA.heads.map(name => 1 + Number(name.split("H")[1]))));
  box.hidden = false;
  fillAttention();
  selectionListeners.push(name => {
    for (const tile of document.querySelectorAll(".tile")) tile.classList.toggle("selected", tile.dataset.head === name);
  });
  themeListeners.push(() => paint());
  addEventListener("beforeprint", () => paint(true));
  addEventListener("afterprint", () => paint());
}

// The chosen prompt in the chosen run: tokens and patterns.
function example() {
  const found = DATA.attention.examples[Number(document.getElementById("attention-prompt").value)];
  return document.getElementById("attention-run").value === "corrupted" ? found.corrupted : found;
}

function fillAttention() {
  const { tokens } = example();
  query = pinned = tokens.length - 1;
  document.getElementById("attention-tokens").replaceChildren(...tokens.map((token, place) => element("button", {
    type: "button", class: "token", "aria-pressed": place === pinned,
    onpointerenter: () => ask(place), onpointerleave: () => ask(pinned), onfocus: () => ask(place), onblur: () => ask(pinned),
    onclick: () => { pinned = place; ask(place); },
  }, element("bdi", {}, shownToken(token)))));
  document.getElementById("attention-heads").replaceChildren(...DATA.heads.map((name, index) => element("button", {
    type: "button", class: `tile${DATA.roles[name] ? " claimed" : ""}${name === selected ? " selected" : ""}`, "data-head": name,
    onclick: () => choose(name),
  }, element("canvas", { width: tokens.length, height: tokens.length, style: `width: ${TILE}px; height: ${TILE}px` }),
    element("strong", {}, name), element("span", { class: "most" }), element("span", { class: "weight" }))));
  ask(query);
}

function ask(place) {
  query = place;
  document.querySelectorAll("#attention-tokens .token").forEach((token, at) => {
    token.classList.toggle("asked", at === query);
    token.setAttribute("aria-pressed", at === pinned);
  });
  paint();
}

function paint(printed = false) {
  const { tokens, patterns } = example(), dark = scheme() === "dark" && !printed;
  document.querySelectorAll(".tile").forEach((tile, index) => {
    const pattern = patterns[index], row = pattern[query], most = row.indexOf(Math.max(...row));
    const token = tokenAt(tokens, most);
    tile.querySelector(".most").textContent = token;
    tile.querySelector(".weight").textContent = row[most].toFixed(2);
    tile.setAttribute("aria-label", `${tile.dataset.head}: from “${tokenAt(tokens, query)}” most to “${token}”, ${row[most].toFixed(2)}`);
    paintTile(tile.querySelector("canvas").getContext("2d"), pattern, tokens.length, dark);
  });
  document.getElementById("attention-said").textContent =
    `From “${shownToken(tokens[query])}” (token ${query + 1} of ${tokens.length}): below each head the token that it looks at most` +
    `${new Set(tokens).size < tokens.length ? " (#4 is the fourth token of the prompt)" : ""}.`;
}

// Darker is more on a light page, lighter is more on a dark one; rows other than the query's are faint.
function paintTile(context, pattern, size, dark) {
  const image = context.createImageData(size, size), from = dark ? [29, 35, 40] : [247, 251, 255], to = dark ? [111, 189, 240] : [8, 69, 130];
  pattern.forEach((row, y) => row.forEach((weight, x) => {
    const share = y === query ? Math.max(weight, .06) : .45 * weight;
    const at = 4 * (y * size + x);
    for (let c = 0; c < 3; c++) image.data[at + c] = Math.round(from[c] + (to[c] - from[c]) * share);
    image.data[at + 3] = 255;
  }));
  context.putImageData(image, 0, 0);
}
