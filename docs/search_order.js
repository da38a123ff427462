// The order of search results. Sphinx orders pages with the same words by their titles, and those of
// the decisions begin with numbers. A decision, or a page of the cookbook, comes after the guide, the
// question or the reference that has the same words.
var Scorer = {
  score: ([page, , , , score]) => score - (page.startsWith("adr/") ? 12 : page.startsWith("cookbook/") ? 1 : 0),
  // All else as Sphinx has it.
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
