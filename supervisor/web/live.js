// Keeps a page of `supervise serve` up to date: where the server tells of a change, the page is
// fetched again and takes the place of the old one, and stays where the reader is in it.
"use strict";

const PAUSE = 1000; // milliseconds between two fetches
let shown = document.querySelector("script[data-changes]").dataset.changes;
let isFetching = false;
let latest = shown;
let source = null;

function openSections(root) {
  return new Map([...root.querySelectorAll("details")].map((it, n) => [it.id || n, it.open]));
}

function replaceBy(page) {
  const open = openSections(document.body);
  const left = [...document.querySelectorAll("[data-keep-scroll], pre, .scroll")].map((it) => it.scrollLeft);
  const place = [window.scrollX, window.scrollY];
  document.title = page.title;
  document.body.replaceChildren(...page.body.childNodes);
  document.body.querySelectorAll("details").forEach((it, n) => {
    if (open.has(it.id || n)) it.open = open.get(it.id || n);
  });
  document.querySelectorAll("[data-keep-scroll], pre, .scroll").forEach((it, n) => {
    it.scrollLeft = left[n] || 0;
  });
  window.scrollTo(...place);
}

async function update() {
  if (isFetching || latest === shown || !document.getSelection().isCollapsed) return;
  isFetching = true;
  try {
    const answer = await fetch(location.pathname, { cache: "no-store" });
    if (answer.ok) {
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      shown = page.querySelector("script[data-changes]").dataset.changes;
      latest = shown;
      replaceBy(page);
    }
  } catch {
    tell(false);
  } finally {
    isFetching = false;
  }
}

function tell(isConnected) {
  document.body.classList.toggle("not-live", !isConnected);
}

function listen() {
  // A browser has six connections to a server: tabs that nobody looks at take none.
  if (document.hidden) {
    source?.close();
    source = null;
  } else if (source === null) {
    source = new EventSource("events");
    source.onmessage = (event) => {
      latest = event.data;
      tell(true);
    };
    source.onerror = () => tell(false);
  }
}

document.addEventListener("visibilitychange", listen);
setInterval(update, PAUSE);
listen();
