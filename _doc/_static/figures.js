// Interactive figures in place of their pictures.
window.Plotly && document.querySelectorAll(".ortmeter-figure").forEach((box) => {
  const picture = box.querySelector("img"), { data, layout } = JSON.parse(box.querySelector("script").textContent);
  // A finger scrolls the page; tapping a bar still tells what it is.
  const dragmode = matchMedia("(pointer: coarse)").matches ? false : "zoom";
  const modeBarButtons = [["zoomIn2d", "zoomOut2d", "resetScale2d"]]; // none that sends the data away
  const graph = document.createElement("div");
  Object.entries({ role: "group", "aria-label": picture.alt }).forEach(([name, value]) => graph.setAttribute(name, value));
  box.append(graph);
  picture.hidden = true;
  Plotly.newPlot(graph, data, { ...layout, dragmode }, { responsive: true, displaylogo: false, doubleClick: "reset", modeBarButtons })
    .catch(() => { graph.remove(); picture.hidden = false; });
});
