// Tables of pandas become flat: one row of headings, the rest of them in a caption.
(() => {
  const text = (cell) => cell.textContent.trim();

  // Rows of cells, where a cell that spans several places is in each of them.
  const spread = (rows) => {
    const grid = rows.map(() => []);
    rows.forEach((row, r) => [...row.cells].forEach((cell) => {
      let c = 0;
      while (grid[r][c]) c += 1;
      for (let i = 0; i < cell.rowSpan; i += 1) for (let j = 0; j < cell.colSpan; j += 1) grid[r + i][c + j] = cell;
    }));
    return grid;
  };

  // pandas writes one row per level of the columns, whose name is above the last level of the index,
  // then a row for the names of the index.
  const readHeadings = (table, index) => {
    const levels = spread([...table.tHead.rows]).map((row) => row.map(text));
    const named = levels.length > 1 && !levels.at(-1).slice(index).some(Boolean);
    const names = named ? levels.pop().slice(0, index) : Array(index).fill("");
    const label = (column) => levels
      .map((row, depth) => (depth && index ? `${row[index - 1]} ${row[column]}` : row[column]).trim())
      .filter(Boolean).join(", ");
    const columns = levels[0].slice(index).map((_, i) => label(index + i));
    return { headings: [...names.map((name) => name || "row"), ...columns], caption: index ? levels[0][index - 1] : "" };
  };

  const writeHeadings = (table, { headings, caption }) => {
    const row = document.createElement("tr");
    headings.forEach((heading) => {
      const cell = row.appendChild(document.createElement("th"));
      cell.scope = "col";
      cell.textContent = heading;
    });
    table.tHead.replaceChildren(row);
    if (caption) table.createCaption().textContent = caption;
  };

  const repeatSpanned = (rows) => spread(rows).forEach((cells, r) => {
    rows[r].replaceChildren(...cells.map((cell) => {
      const copy = cell.cloneNode(true);
      copy.rowSpan = 1;
      if (copy.tagName === "TH") copy.scope = "row";
      return copy;
    }));
  });

  document.querySelectorAll("table.dataframe").forEach((table) => {
    const rows = [...table.tBodies[0].rows];
    if (!table.tHead || !rows.length) return;
    repeatSpanned(rows);
    writeHeadings(table, readHeadings(table, rows[0].querySelectorAll("th").length));
  });
})();
