// Zoom, pan and tooltips for the drawings of the page that do not have them yet.
document.querySelectorAll(".ortmeter-drawing:not([data-ready])").forEach((box) => {
  box.dataset.ready = "";
  const [tools, view, tip] = ["tools", "view", "tip"].map((name) => box.querySelector(`.ortmeter-${name}`));
  const svg = view.querySelector("svg"), graph = svg.viewBox.baseVal, full = [graph.width, graph.height];
  const clamp = (value, low, high) => Math.max(low, Math.min(high, value));
  const size = () => [view.clientWidth, view.clientHeight];
  const place = (e) => [e.clientX - view.getBoundingClientRect().x, e.clientY - view.getBoundingClientRect().y];
  let corner = [0, 0], scale = 1, moved = false, width = 0; // units of the graph, pixels per unit

  const show = () => { // the middle of the view stays on the graph
    const seen = size().map((pixels) => pixels / scale);
    corner = corner.map((value, i) => clamp(value, -seen[i] / 2, full[i] - seen[i] / 2));
    svg.setAttribute("viewBox", [...corner, ...seen].join(" "));
    tip.hidden = true;
  };
  const look = (pixels) => { // the top of the graph, or all of it in the middle
    scale = pixels;
    moved = false;
    corner = full.map((value, i) => (value - size()[i] / scale) / 2);
    corner[1] = Math.min(0, corner[1]);
    show();
  };
  const reset = () => {
    const readable = clamp(view.clientWidth / full[0], 0.7, 4 / 3);
    view.style.height = `${Math.min(full[1] * readable + 2, 0.6 * innerHeight)}px`;
    look(readable);
  };
  const fit = () => look(Math.min(size()[0] / full[0], size()[1] / full[1], 4 / 3));
  const move = (...pixels) => { moved = true; corner = corner.map((value, i) => value - pixels[i] / scale); show(); };
  const zoom = (factor, point = size().map((pixels) => pixels / 2)) => {
    const next = clamp(scale * factor, 0.05, 8);
    corner = corner.map((value, i) => value + point[i] / scale - point[i] / next);
    scale = next;
    move(0, 0);
  };

  const actions = {
    "+": () => zoom(1.25), "=": () => zoom(1.25), "-": () => zoom(0.8), 0: reset, reset, fit,
    ArrowLeft: () => move(40, 0), ArrowRight: () => move(-40, 0),
    ArrowUp: () => move(0, 40), ArrowDown: () => move(0, -40),
  };
  tools.addEventListener("click", (e) => actions[e.target.dataset.action]?.());
  view.addEventListener("keydown", (e) => {
    if (e.ctrlKey || e.metaKey || e.altKey || !actions[e.key]) return;
    e.preventDefault();
    actions[e.key]();
  });
  view.addEventListener("wheel", (e) => { // without Ctrl the wheel scrolls the page
    if (!e.ctrlKey && !e.metaKey) return;
    e.preventDefault();
    zoom(Math.exp(-clamp(e.deltaY, -100, 100) / 300), place(e));
  }, { passive: false });

  const pointers = new Map(); // one moves the graph, two zoom
  const grip = () => {
    const [a, b = a] = pointers.values();
    return { point: [(a[0] + b[0]) / 2, (a[1] + b[1]) / 2], spread: Math.hypot(a[0] - b[0], a[1] - b[1]) };
  };
  view.addEventListener("pointerdown", (e) => { hint(e); if (e.button === 0) pointers.set(e.pointerId, place(e)); });
  view.addEventListener("pointermove", (e) => {
    if (!pointers.has(e.pointerId)) return hint(e);
    view.setPointerCapture(e.pointerId);
    const before = grip();
    pointers.set(e.pointerId, place(e));
    const after = grip();
    move(after.point[0] - before.point[0], after.point[1] - before.point[1]);
    if (before.spread) zoom(after.spread / before.spread, after.point);
  });
  ["pointerup", "pointercancel"].forEach((name) => view.addEventListener(name, (e) => pointers.delete(e.pointerId)));
  view.addEventListener("pointerleave", (e) => { if (e.pointerType === "mouse") tip.hidden = true; });
  // A finger scrolls the page, and moves the graph once a tap gave it the focus.
  view.addEventListener("focus", () => { view.style.touchAction = "none"; });
  view.addEventListener("blur", () => { view.style.touchAction = "pan-y"; tip.hidden = true; });

  svg.querySelectorAll("title").forEach((title) => { // the browser would show it too
    title.parentNode.dataset.tip = title.textContent;
    title.remove();
  });
  const hint = (e) => {
    const [x, y] = place(e), text = e.target.closest("[data-tip]")?.dataset.tip;
    tip.hidden = !text;
    tip.textContent = text;
    tip.style.left = `${clamp(x + 12, 0, view.clientWidth - tip.offsetWidth)}px`;
    tip.style.top = `${view.offsetTop + y + 16}px`;
  };

  tools.hidden = false;
  Object.assign(view.style, { overflow: "hidden", touchAction: "pan-y", cursor: "grab", userSelect: "none" });
  Object.assign(svg.style, { maxWidth: "none", height: "100%" });
  new ResizeObserver(() => {
    if (view.clientWidth === width) return;
    width = view.clientWidth;
    if (width) moved ? show() : reset();
  }).observe(view);
});
