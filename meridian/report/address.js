// What the address opens: a head, the note about a number, a part of the page that is folded; then the figures.
function openTarget() {
  let name = location.hash.slice(1);
  try { name = decodeURIComponent(name); } catch { return; }
  const target = name && document.getElementById(name);
  for (let one = target; one; one = one.parentElement) if (one.tagName === "DETAILS") one.open = true;
  if (target && target.closest("details")) target.scrollIntoView();
}

function followAddress() {
  const { head } = fragment();
  const name = head && DATA.heads.find(one => one.toLowerCase() === head.toLowerCase());
  if (name) select(name); else if (!location.hash && selected) select(null);
  sayUnknown(name ? "" : head);
  showSource();
  openTarget();
}

// A head that the model does not have is named, at the top of the page.
function sayUnknown(head) {
  document.getElementById("no-head")?.remove();
  if (!head) return;
  const known = `${DATA.heads[0]} to ${DATA.heads.at(-1)}`;
  const note = element("p", { id: "no-head", class: "warning", role: "status" }, `The address asks for head ${head.slice(0, 40)}; this model has ${known}.`);
  document.querySelector("main").prepend(note);
  note.scrollIntoView({ block: "center" });
}

// The menu follows the reader: the section near the top of the window is marked, and its entry scrolled into sight.
function followReader() {
  const list = document.querySelector("nav ul"), links = [...list?.querySelectorAll("a") ?? []];
  const watch = new IntersectionObserver(entries => entries.filter(one => one.isIntersecting).forEach(({ target }) => {
    for (const link of links) {
      if (link.hash !== `#${target.id}`) { link.removeAttribute("aria-current"); continue; }
      link.setAttribute("aria-current", "true");
      list.scrollLeft = link.offsetLeft - list.offsetLeft - (list.clientWidth - link.offsetWidth) / 2;  // the page stays where it is
    }
  }), { rootMargin: "-15% 0px -80%" });
  for (const link of links) watch.observe(document.getElementById(link.hash.slice(1)));
}

function begin() {
  addEventListener("hashchange", followAddress);
  addEventListener("keydown", event => {
    if (event.key !== "Escape") return;
    if (!document.getElementById("source").hidden) closeSource(); else if (selected) closePanel();
  });
  followAddress();
  followReader();
  load().then(() => {
    watchFigures();
    document.documentElement.dataset.ready = "yes";
  }).catch(error => {
    for (const place of places) place.textContent = `Not drawn (${error.message}); its numbers are in the table below.`;
  });
}
