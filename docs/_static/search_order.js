// What the search of the site finds: the glossary first, then pages, then the Python reference.
var Scorer = {
  score: ([docname, title, anchor, descr, score]) =>
    docname === "glossary" ? score + 1000 : docname.startsWith("api/") ? score - 1000 : score,
  // the rest as Sphinx has it
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
