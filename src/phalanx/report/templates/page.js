"use strict";
// Tables that sort and search their rows, which the page holds as JSON: a row is kind, name, histogram, cells.
const STEP = 40;

function number(text) {
  const value = parseFloat(text.replace("−", "-").replaceAll(",", "").replace("over ", ""));
  return Number.isNaN(value) ? -Infinity : value;
}

function element(tag, text = "", kind = "") {
  const made = document.createElement(tag);
  made.textContent = text;
  if (kind) made.className = kind;
  return made;
}

function histogram(digits) {
  const cell = element("td", "", "spark");
  const bars = [...digits].map((height, bin) => `M${4 * bin + 2} 20v-${2 * height}`).join("");
  if (digits) cell.innerHTML = `<svg viewBox="0 0 80 20"><path d="${bars}"/></svg>`;
  return cell;
}

function fill(box) {
  const { titles, rows, sorted_by } = JSON.parse(box.querySelector("script").textContent);
  const hasHistograms = rows.some((row) => row[2]);
  const [head, body] = [box.querySelector("thead"), box.querySelector("tbody")];
  const [first, rest] = [rows.filter((row) => row[0]), rows.filter((row) => !row[0])];
  let sorted = sorted_by === null ? null : { column: sorted_by, sign: -1 };
  let shown = STEP;

  const search = element("input");
  search.type = "search";
  search.placeholder = "search names";
  search.setAttribute("aria-label", "search names");
  const note = element("span", "", "count");
  const more = element("button", "show more", "more");
  const tools = element("div", "", "tools");
  tools.append(search, note);
  box.prepend(tools);
  box.append(more);

  function matching() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const found = rest.filter((row) => words.every((word) => row[1].toLowerCase().includes(word)));
    if (sorted === null) return found;
    const keys = new Map(found.map((row) => [row, number(row[3][sorted.column][1])]));
    return found.sort((a, b) => sorted.sign * (keys.get(a) - keys.get(b) || 0));
  }

  function show() {
    const found = matching();
    body.replaceChildren(...[...first, ...found.slice(0, shown)].map(([kind, name, digits, cells]) => {
      const row = element("tr", "", kind);
      const title = element("th", name);
      title.title = name;
      row.append(title, ...(hasHistograms ? [histogram(digits)] : []));
      row.append(...cells.map(([mark, words]) => element("td", words, mark)));
      return row;
    }));
    const total = rest.length.toLocaleString("en");
    note.textContent = `${Math.min(shown, found.length).toLocaleString("en")} of ${
      found.length === rest.length ? total : `${found.length.toLocaleString("en")} found, ${total}`} rows`;
    more.hidden = shown >= found.length;
    [...head.querySelectorAll("button")].forEach((button) => {
      const own = sorted !== null && button.dataset.column === String(sorted.column);
      button.parentElement.ariaSort = !own ? "none" : sorted.sign > 0 ? "ascending" : "descending";
    });
  }

  function heading(title, column) {
    const cell = element("th");
    const button = element("button", title);
    button.dataset.column = column;
    button.title = column === null ? "in the order of the model" : `sort by ${title}`;
    button.onclick = () => {
      const upwards = title.startsWith("ESS") ? 1 : -1;
      const again = sorted !== null && sorted.column === column;
      sorted = column === null ? null : { column, sign: again ? -sorted.sign : upwards };
      show();
    };
    cell.append(button);
    return cell;
  }

  const row = element("tr");
  row.append(heading("name", null), ...(hasHistograms ? [element("th", "marginal")] : []), ...titles.map(heading));
  head.replaceChildren(row);
  search.oninput = () => { shown = STEP; show(); };
  more.onclick = () => { shown = 5 * shown; show(); };
  show();
}

document.querySelectorAll(".table").forEach(fill);
