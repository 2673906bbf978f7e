// Columns are aligned by what they hold; with simple-datatables, long tables sort and filter.
(() => {
  const LEAST_SORTED = 3, LEAST_FILTERED = 10; // rows
  const SHORT = 16; // characters that stay on one line, as those of an interval
  const SCALES = { n: 1e-9, µ: 1e-6, m: 1e-3, k: 1e3, M: 1e6, G: 1e9, T: 1e12 };
  const BLANK = /^(|[-–—]|nan|nat|none|<na>)$/i;
  // A number, its unit and its interval: "1,234.5", "12 ms", "98 %", "1.05 [1.01, 1.10]".
  const NUMBER = /^[~<>≤≥]?\s*([-+]?(?:\d{1,3}(?:,\d{3})+|\d+|(?=\.\d))(?:\.\d*)?(?:e[-+]?\d+)?)\s*([nµmkMGT](?=[sBF]))?[\p{L}%×/]*\s*(?:(?:[[(±]|to\b).*)?$/u;

  // A number, undefined for what is none; what is absent is below all numbers.
  const parse = (text) => {
    if (BLANK.test(text)) return -Infinity;
    if (/^[-+]?inf$/i.test(text)) return text[0] === "-" ? -Number.MAX_VALUE : Infinity;
    const [, digits, scale] = text.replace("−", "-").match(NUMBER) ?? [];
    return digits && Number(digits.replaceAll(",", "")) * (SCALES[scale] ?? 1);
  };

  const readColumns = (rows) => [...rows[0].cells].map((cell, i) => {
    const texts = rows.map((row) => row.cells[i].textContent.trim());
    const values = texts.map(parse);
    return { heads: cell.tagName === "TH", short: texts.every((text) => text.length <= SHORT), numeric: values.every((v) => v !== undefined) && values.some((v) => v > -Infinity) };
  });

  const template = ({ classes, searchable }) =>
    `${searchable ? `<label class="${classes.search}">Filter <input type="search" class="${classes.input}"></label>` : ""}
     <div class="${classes.container}"></div>`;

  const makeSortable = (table, rows, columns) => {
    const { data } = new simpleDatatables.DataTable(table, {
      paging: false, fixedColumns: false, searchAnd: true, searchable: rows.length >= LEAST_FILTERED, template,
      labels: { noResults: "No row has this text" },
      columns: columns.map(({ heads, numeric }, select) => ({
        select,
        sortSequence: numeric ? ["desc", "asc"] : ["asc", "desc"], // the largest first
        ...(heads && { render: (_, cell) => ({ ...cell, nodeName: "TH" }) }),
      })),
    });
    data.data.forEach((row) => row.cells.forEach((cell, i) => {
      if (columns[i].numeric) cell.order = parse(cell.text.trim());
    }));
  };

  document.querySelectorAll("table.dataframe").forEach((table) => {
    const rows = [...(table.tBodies[0]?.rows ?? [])];
    if (!table.tHead || !rows.length) return;
    const columns = readColumns(rows);
    [...table.tHead.rows, ...rows].forEach((row) => columns.forEach(({ numeric, short }, i) => {
      row.cells[i].classList.toggle("words", !numeric);
      row.cells[i].classList.toggle("short", short);
    }));
    if (!window.simpleDatatables || rows.length < LEAST_SORTED) return;
    // The headings of a table that is folded have no text for simple-datatables: it waits.
    const sort = () => makeSortable(table, rows, columns);
    const fold = table.closest("details:not([open])");
    if (fold) fold.addEventListener("toggle", sort, { once: true });
    else sort();
  });
  document.body.insertAdjacentHTML("beforeend", '<p id="sort-hint" hidden>Sort by this column</p>');
})();
