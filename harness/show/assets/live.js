"use strict";
// The page of a running training: reloads after each look, and keeps what was unfolded, the theme and the place.
(() => {
  const all = () => [...document.querySelectorAll("details")];
  const kept = JSON.parse(sessionStorage.getItem("kept") || "null");
  if (kept) {
    for (const one of all()) one.open = kept.open.includes(one.id);
    if (kept.theme) document.documentElement.dataset.theme = kept.theme;
    scrollTo(0, kept.y);
  }
  const line = document.createElement("p");
  line.setAttribute("role", "status");
  document.querySelector("header").after(line);
  const say = (text) => { line.textContent = text; };
  say(`Live: the last minutes, as of ${new Date().toLocaleTimeString()}.`);
  const changes = new EventSource("changes");
  changes.onmessage = (event) => {
    if (event.data === "ended") {
      changes.close();
      say("The program has ended: this is the last look.");
      return;
    }
    const open = all().filter((one) => one.open).map((one) => one.id);
    sessionStorage.setItem("kept", JSON.stringify({ open, theme: document.documentElement.dataset.theme, y: scrollY }));
    location.reload();
  };
  changes.onerror = () => say("harness watch no longer answers: this is its last look.");
})();
