// Tables that sort, filter and grow, with the worst first as the page has them.
const PAGE = 25;

// `columns`: {key: {title, value(row), down}}; `filters`: [{choice, value(row)}]; `element(row)` is the row's tr; `say(shown, kept)`.
// `order`: {key, down} or {key: null}, the order of `rows`; `whole`: on paper all rows that are kept.
function browse({ table, columns, rows, order, filters = [], search = null, element: made, more, say, whole = false }) {
  let shown = PAGE;
  const value = row => columns[order.key].value(row);
  const compare = (first, second) => {  // missing values last whichever way; equal ones in the order of the results
    if (order.key === null) return first.place - second.place;
    const [a, b] = [value(first), value(second)];
    if (a === null || b === null) return (a === null) - (b === null) || first.place - second.place;
    const found = typeof a === "string" || typeof b === "string" ? String(a).localeCompare(String(b), "en") : a - b;
    return (order.down ? -found : found) || first.place - second.place;
  };
  const isKept = row => filters.every(one => !one.choice.value || one.value(row) === one.choice.value) &&
    (!search?.value || row.words.includes(search.value.toLowerCase()));
  const show = (most = shown) => {
    const kept = rows.filter(isKept).sort(compare), first = kept.slice(0, most);
    table.tBodies[0].replaceChildren(...first.map(made));
    for (const heading of table.querySelectorAll("th[data-key]")) {
      heading.setAttribute("aria-sort", heading.dataset.key !== order.key ? "none" : order.down ? "descending" : "ascending");
    }
    say(first, kept);
    more.hidden = first.length === kept.length;
  };
  const anew = () => { shown = PAGE; show(); };
  const sortBy = key => { order.down = order.key === key ? !order.down : Boolean(columns[key].down); order.key = key; anew(); };
  table.tHead.rows[0].replaceChildren(...Object.entries(columns).map(([key, { title }]) =>
    element("th", { scope: "col", "data-key": key }, element("button", { type: "button", onclick: () => sortBy(key) }, title))));
  for (const { choice, value: of, all } of filters) {
    choice.append(element("option", { value: "" }, all),
      ...[...new Set(rows.map(of))].sort().map(value => element("option", { value }, words(value))));
    choice.addEventListener("change", anew);
  }
  search?.addEventListener("input", anew);
  more.addEventListener("click", () => { shown += PAGE; show(); });
  if (whole) {
    addEventListener("beforeprint", () => show(Infinity));
    addEventListener("afterprint", () => show());
  }
  return show;
}

// Tables whose rows the page holds already.
function watchTables() {
  document.querySelectorAll("[data-browse]").forEach(browseMarkup);
}

function browseMarkup(box) {
  const table = box.querySelector("table"), headings = [...table.tHead.rows[0].cells];
  const numbers = headings.map((_, at) => [...table.tBodies[0].rows].some(row => row.cells[at].dataset.value !== undefined));
  const rows = [...table.tBodies[0].rows].map((made, place) => ({ place, made, words: made.textContent.toLowerCase() }));
  const cell = (row, at) => row.made.cells[at], text = (row, at) => cell(row, at).textContent.trim();
  const word = at => row => (cell(row, at).querySelector("bdi") ?? cell(row, at).querySelector(".verdict")?.lastChild ?? cell(row, at)).textContent.trim();
  const value = at => row => !numbers[at] ? text(row, at) : cell(row, at).dataset.value === undefined ? null : Number(cell(row, at).dataset.value);
  const columns = Object.fromEntries(headings.map((heading, at) =>
    [String(at), { title: heading.textContent, value: value(at), down: numbers[at] }]));
  const filters = headings.flatMap((heading, at) => "filter" in heading.dataset ? [{
    choice: element("select", { "data-column": heading.textContent }), value: word(at), all: "all", title: heading.textContent }] : []);
  const search = element("input", { type: "search", "aria-label": `Search in ${box.querySelector("h2").textContent}` });
  box.querySelector(".choose").append(...filters.map(one => element("label", {}, one.title, one.choice)), element("label", {}, "search", search));
  const counted = box.querySelector(".counted");
  browse({ table, columns, rows, order: { key: null, down: false }, filters, search, element: row => row.made, more: box.querySelector(".more"),
    whole: true, say: (shown, kept) => { counted.textContent = `${shown.length} of ${kept.length} rows`; } })();
}
