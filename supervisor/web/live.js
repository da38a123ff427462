// Keeps a page of `supervise serve` up to date. The server tells two numbers whenever one of them
// changes: how often anything has changed, and the last record of the journal. What is in an element
// with `data-live` is then fetched again, and put in its place. Of a report, a new record loads all of
// the page again: the reader stays at the same place, and what was open is open.
"use strict";
(() => {
  const PAUSE = 1000; // milliseconds between two looks at what the server has told
  const AT_EASE = 15000; // since the page was loaded, and since the reader last did something in a chart
  const KEPT = `open at ${location.pathname}`;
  const tag = document.querySelector("script[data-changes]");
  let shown = tag.dataset.changes, latest = shown;
  let records = tag.dataset.records || "";
  const loaded = records;
  let isFetching = false;
  let source = null;
  let touched = Date.now();

  const sections = () => [...document.querySelectorAll("details")];
  const nameOf = (section) => section.querySelector("summary").textContent;

  const restore = () => {
    const open = new Map(JSON.parse(sessionStorage.getItem(KEPT) || "[]"));
    sessionStorage.removeItem(KEPT);
    for (const each of sections()) if (open.has(nameOf(each))) each.open = open.get(nameOf(each));
  };

  const tell = (isConnected) => {
    document.getElementById("lost").hidden = isConnected;
  };

  const isBusy = () => !document.getSelection().isCollapsed;

  const update = async () => {
    if (isFetching || isBusy()) return;
    if (records !== loaded && Date.now() - touched > AT_EASE) {
      sessionStorage.setItem(KEPT, JSON.stringify(sections().map((it) => [nameOf(it), it.open])));
      location.reload();
      return;
    }
    if (latest === shown) return;
    isFetching = true;
    const told = latest;
    try {
      const answer = await fetch(tag.dataset.live, { cache: "no-store" });
      if (answer.ok) {
        const page = new DOMParser().parseFromString(await answer.text(), "text/html");
        for (const each of document.querySelectorAll("[data-live]:not(script)")) {
          const fresh = page.getElementById(each.id);
          if (fresh) each.replaceChildren(...fresh.childNodes);
        }
        shown = told;
      }
    } catch {
      tell(false);
    } finally {
      isFetching = false;
    }
  };

  const listen = () => {
    // A browser has six connections to a server: tabs that nobody looks at take none.
    if (document.hidden) {
      source?.close();
      source = null;
    } else if (source === null) {
      source = new EventSource(tag.dataset.events);
      source.onmessage = (event) => {
        [latest, records] = event.data.split(" ");
        tell(true);
      };
      source.onerror = () => tell(false);
    }
  };

  addEventListener("pointerdown", (event) => {
    if (event.target.closest(".chart, .zoom")) touched = Date.now();
  });
  document.addEventListener("visibilitychange", listen);
  setInterval(update, PAUSE);
  restore();
  listen();
})();
