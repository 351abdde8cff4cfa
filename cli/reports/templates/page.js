"use strict";
(() => {
  const root = document.documentElement;
  const said = document.getElementById("said");
  const theme = document.getElementById("theme");
  const choices = [["", "as the system"], ["light", "light"], ["dark", "dark"]];
  let chosen = 0;
  theme.hidden = false;
  theme.addEventListener("click", () => {
    chosen = (chosen + 1) % choices.length;
    if (choices[chosen][0]) root.dataset.theme = choices[chosen][0];
    else delete root.dataset.theme;
    theme.querySelector("span").textContent = choices[chosen][1];
  });
  const marked = (text) => {
    const range = document.createRange();
    range.selectNodeContents(text);
    const selection = getSelection();
    selection.removeAllRanges();
    selection.addRange(range);
  };
  for (const button of document.querySelectorAll("button.copy")) {
    const text = button.closest(".command").querySelector("code");
    button.hidden = false;
    button.addEventListener("click", async () => {
      let done = true;
      try {
        await navigator.clipboard.writeText(text.textContent);
      } catch {
        marked(text);
        done = document.execCommand("copy");
      }
      said.textContent = done ? "Copied" : "Select the text and copy it";
      button.textContent = done ? "Copied" : "Copy by hand";
      setTimeout(() => { button.textContent = "Copy"; }, 2000);
    });
  }
  const open = [];
  addEventListener("beforeprint", () => {
    for (const fold of document.querySelectorAll("figure details:not([open])")) {
      fold.open = true;
      open.push(fold);
    }
  });
  addEventListener("afterprint", () => {
    while (open.length) open.pop().open = false;
  });
})();
