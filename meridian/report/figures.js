// The figures that the drawing library draws: unpacked once, drawn when they come near, marked when a head is selected.
const PRINTED = { wide: 680, half: 325 };  // CSS pixels of a column on A4
const MARK = "#d55e00";
const places = [...document.querySelectorAll("[data-figure]")];
let specifications = null;

async function unpacked(id) {
  const packed = Uint8Array.from(atob(document.getElementById(id).textContent.trim()), c => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
}

async function load() {
  if (!places.length) return;
  if (!("DecompressionStream" in window)) throw new Error("this browser cannot unpack gzip");
  const [library, text] = await Promise.all([unpacked("library"), unpacked("figures")]);
  const script = document.createElement("script");
  script.textContent = library;
  document.head.append(script);
  specifications = { light: JSON.parse(text), dark: JSON.parse(text.replaceAll(INK, INK_IN_THE_DARK)) };
}

function isHeadMap(name) {
  return name.startsWith("heads_");
}

function marks(name, shapes) {
  const found = isHeadMap(name) && selected && /^L(\d+)H(\d+)$/.exec(selected);
  if (!found) return shapes;
  const [layer, head] = [Number(found[1]), Number(found[2])];
  return [...shapes, { type: "rect", x0: head - .5, x1: head + .5, y0: layer - .5, y1: layer + .5, line: { color: MARK, width: 4 } }];
}

function draw(place, printed = false) {
  const shown = printed ? "light" : scheme(), name = place.dataset.figure;
  const { data, layout } = specifications[shown][name];
  const column = place.closest(".grid") ? PRINTED.half : PRINTED.wide;
  const width = Math.max(printed ? column : place.clientWidth, layout.meta.least);
  place.style.zoom = printed ? column / width : 1;
  Plotly.react(place, data, { ...layout, shapes: marks(name, layout.shapes), width, autosize: false, dragmode: false }, { displayModeBar: false });
  if (!place.dataset.drawn) place.on("plotly_click", event => clicked(place, event));
  const wider = !printed && width > place.clientWidth;
  place.classList.toggle("wider", wider);
  if (wider) place.tabIndex = 0; else place.removeAttribute("tabindex");  // keys scroll what has the focus
  place.dataset.drawn = name;
  place.dataset.scheme = shown;
}

function clicked(place, event) {
  const point = event.points[0];
  if (isHeadMap(place.dataset.figure)) choose(`L${point.y}H${point.x}`);
}

function redraw(printed = false) {
  if (specifications) for (const place of places) if (printed || place.dataset.drawn) draw(place, printed);
}

function chooseMap() {
  const map = document.getElementById("chosen-map");
  if (!map) return;
  const place = document.querySelector("[data-chosen]"), title = document.getElementById("chosen-title");
  map.addEventListener("change", () => {
    place.dataset.figure = map.value;
    title.textContent = map.selectedOptions[0].textContent;
    const caption = document.getElementById(`figure-${map.value}`)?.dataset.caption ?? "";
    document.getElementById("chosen-caption").textContent = caption;
    place.setAttribute("aria-label", `${title.textContent}. ${caption}`);
    if (specifications) draw(place);
  });
}

function watchFigures() {
  const near = new IntersectionObserver(entries => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      near.unobserve(entry.target);
      draw(entry.target);
    }
  }, { rootMargin: "500px 0px" });
  places.forEach(place => near.observe(place));
  let timer = 0, width = innerWidth;
  const later = () => { clearTimeout(timer); timer = setTimeout(redraw, 150); };
  addEventListener("resize", () => {
    if (innerWidth === width) return;  // a phone's address bar only changes the height
    width = innerWidth;
    later();
  });
  selectionListeners.push(later);  // the panel changes the width, too
  themeListeners.push(() => redraw());
  addEventListener("beforeprint", () => redraw(true));
  addEventListener("afterprint", () => redraw());
}
