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
  if (head) select(head); else if (!location.hash && selected) select(null);
  showSource();
  openTarget();
}

function begin() {
  addEventListener("hashchange", followAddress);
  addEventListener("keydown", event => {
    if (event.key !== "Escape") return;
    if (!document.getElementById("source").hidden) closeSource(); else if (selected) closePanel();
  });
  followAddress();
  load().then(() => {
    watchFigures();
    document.documentElement.dataset.ready = "yes";
  }).catch(error => {
    for (const place of places) place.textContent = `Not drawn (${error.message}); its numbers are in the table below.`;
  });
}
