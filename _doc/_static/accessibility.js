// What scrolls inside its box is reached with the keyboard, and what a screen reader announces has a name.
(() => {
  const boxes = document.querySelectorAll(".answer pre, .ortmeter-conclusion pre, .output_subarea, .datatable-container, div.math, .sphx-glr-script-out, .pst-scrollable-table-container");
  const reached = { tabindex: "0", role: "group", "aria-label": "Content that scrolls" };
  const update = (box) => Object.entries(reached).forEach(([name, value]) => {
    if (box.scrollWidth > box.clientWidth) box.setAttribute(name, value);
    else box.removeAttribute(name);
  });
  const observer = new ResizeObserver((entries) => entries.forEach(({ target }) => update(target)));
  boxes.forEach((box) => observer.observe(box));

  // The theme folds the pages of a section under an arrow without a name.
  document.querySelectorAll("li > details > summary").forEach((summary) => {
    summary.setAttribute("aria-label", `Pages of ${summary.closest("li").querySelector("a").textContent}`);
  });
  // A button is named after the text that is seen on it.
  document.querySelectorAll(".search-button__button[aria-label]").forEach((button) => {
    const seen = button.innerText.trim().replace(/\s+/g, " ");
    if (seen) button.setAttribute("aria-label", seen);
  });
  // A list of references is not made of list items.
  document.querySelectorAll(".citation-list, .citation").forEach((item) => item.removeAttribute("role"));
})();
