// Fetches the page again and replaces its <main>. Nothing else runs in the browser.
"use strict";

const pause = document.getElementById("pause");
const lost = document.getElementById("lost");
let paused = false;

// Seconds between two fetches; 0: the page is not fetched again.
const period = () => Number(document.querySelector("main").dataset.refresh) || 0;

// Whether the reader is doing something that a new <main> would undo.
function busy() {
  const main = document.querySelector("main");
  const selection = getSelection();
  const selects = !selection.isCollapsed && main.contains(selection.anchorNode);
  return selects || (main.contains(document.activeElement) && document.activeElement.matches("input, select, textarea"));
}

// Keeps what the reader has opened and scrolled; parts are found again by their id.
function keep(from, to) {
  for (const each of from.querySelectorAll("details[id]")) {
    const same = to.querySelector("#" + CSS.escape(each.id));
    if (same) same.open = each.open;
  }
  return [...from.querySelectorAll("[id]")].filter((each) => each.scrollLeft || each.scrollTop)
    .map((each) => [each.id, each.scrollLeft, each.scrollTop]);
}

async function refresh() {
  const answer = await fetch(location.href, { cache: "no-store" });
  const text = await answer.text();
  const found = new DOMParser().parseFromString(text, "text/html").querySelector("main");
  if (!found) throw new Error(text);
  const main = document.querySelector("main");
  const scrolled = keep(main, found);
  main.replaceWith(document.importNode(found, true));
  for (const [id, left, top] of scrolled) document.getElementById(id)?.scrollTo(left, top);
}

async function turn() {
  if (!paused && !document.hidden && !busy() && period()) {
    try {
      await refresh();
      lost.hidden = true;
    } catch (error) {
      lost.textContent = error instanceof TypeError ? "The dashboard does not answer. Is di-store dashboard still running?"
        : error.message;
      lost.hidden = false;
    }
  }
  setTimeout(turn, (period() || 2) * 1000);
}

if (period()) {
  pause.hidden = false;
  pause.addEventListener("click", () => {
    paused = !paused;
    pause.textContent = paused ? "Resume" : "Pause";
  });
  setTimeout(turn, period() * 1000);
}
