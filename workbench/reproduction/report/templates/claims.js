// Shows the claims that fit the form; the form's state is kept in the address, so that it can be linked to.
const fields = ["technique", "verdict", "evidence", "whose"].map(name => document.getElementById(name));
const search = document.getElementById("search"), rows = [...document.querySelectorAll("#claims > li")];
const list = document.getElementById("lines"), lines = [...list.children];  // findings, which a search shows, too
function show() {
  const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
  const count = row => words.filter(word => row.textContent.toLowerCase().includes(word)).length;
  const has = row => count(row) === words.length;
  const most = Math.max(1, Math.ceil(words.length / 2), ...lines.map(count));  // else the nearest findings
  let number = 0;
  for (const row of rows) {
    const fits = fields.every(field => !field.value || row.dataset[field.id] === field.value);
    row.hidden = !(fits && has(row));
    number += !row.hidden;
  }
  for (const line of lines) line.hidden = count(line) < most || !["", line.dataset.technique].includes(fields[0].value);
  list.parentElement.hidden = lines.every(line => line.hidden);
  document.getElementById("shown").textContent = `${number} of ${rows.length} claims`;
  const state = new URLSearchParams([...fields, search].filter(field => field.value).map(field => [field.id, field.value]));
  history.replaceState(null, "", `#${state}`);
}
function read() {
  const state = new URLSearchParams(location.hash.slice(1));
  for (const field of [...fields, search]) field.value = state.get(field.id) ?? "";
  show();
}
document.getElementById("filter").addEventListener("input", show);
document.getElementById("filter").addEventListener("submit", event => event.preventDefault());
addEventListener("hashchange", read);
read();
