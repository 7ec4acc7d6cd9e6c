"use strict";
(() => {
  const INK = "#1f2933", INK_IN_THE_DARK = "#e6eaf0";
  const PRINTED = { wide: 680, half: 325 };  // CSS pixels of a column on A4
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const places = [...document.querySelectorAll("[data-figure]")];
  let specifications = null;

  async function unpacked(id) {
    const packed = Uint8Array.from(atob(document.getElementById(id).textContent.trim()), c => c.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).text();
  }

  async function load() {
    if (!("DecompressionStream" in window)) throw new Error("this browser cannot unpack gzip");
    const [library, text] = await Promise.all([unpacked("library"), unpacked("figures")]);
    const element = document.createElement("script");
    element.textContent = library;
    document.head.append(element);
    specifications = { light: JSON.parse(text), dark: JSON.parse(text.replaceAll(INK, INK_IN_THE_DARK)) };
  }

  function draw(place, printed = false) {
    const scheme = dark.matches && !printed ? "dark" : "light";
    const { data, layout } = specifications[scheme][place.dataset.figure];
    const column = place.closest(".grid") ? PRINTED.half : PRINTED.wide;
    const width = Math.max(printed ? column : place.clientWidth, layout.meta.least);
    place.style.zoom = printed ? column / width : 1;
    Plotly.react(place, data, { ...layout, width, autosize: false, dragmode: false }, { displayModeBar: false });
    const wider = !printed && width > place.clientWidth;
    place.classList.toggle("wider", wider);
    if (wider) place.tabIndex = 0; else place.removeAttribute("tabindex");  // keys scroll what has the focus
    place.dataset.drawn = place.dataset.figure;
    place.dataset.scheme = scheme;
  }

  function redraw(printed = false) {
    for (const place of places) if (printed || place.dataset.drawn) draw(place, printed);
  }

  function choose() {
    const prompt = document.getElementById("chosen-prompt"), head = document.getElementById("chosen-head");
    if (!prompt) return;
    const place = document.querySelector("[data-chosen]"), title = document.getElementById("chosen-title");
    const update = () => {
      place.dataset.figure = `pattern_${prompt.value}_${head.value}`;
      title.textContent = document.getElementById("choices-of-patterns")?.content
        .querySelector(`[data-name="${place.dataset.figure}"]`)?.textContent ?? title.textContent;
      place.setAttribute("aria-label", title.textContent);
      if (specifications) draw(place);
    };
    prompt.addEventListener("change", update);
    head.addEventListener("change", update);
  }

  function openTarget() {
    const target = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    for (let element = target; element; element = element.parentElement) if (element.tagName === "DETAILS") element.open = true;
    if (target && target.closest("details")) target.scrollIntoView();
  }

  choose();
  addEventListener("hashchange", openTarget);
  openTarget();
  load().then(() => {
    const near = new IntersectionObserver(entries => {
      for (const entry of entries) {
        if (!entry.isIntersecting) continue;
        near.unobserve(entry.target);
        draw(entry.target);
      }
    }, { rootMargin: "500px 0px" });
    places.forEach(place => near.observe(place));
    let timer = 0, width = innerWidth;
    addEventListener("resize", () => {
      if (innerWidth === width) return;  // a phone's address bar only changes the height
      width = innerWidth;
      clearTimeout(timer);
      timer = setTimeout(redraw, 150);
    });
    dark.addEventListener("change", () => redraw());
    addEventListener("beforeprint", () => redraw(true));
    addEventListener("afterprint", () => redraw());
    document.documentElement.dataset.ready = "yes";
  }).catch(error => {
    for (const place of places) place.textContent = `Not drawn (${error.message}); its numbers are in the table below.`;
  });
})();
