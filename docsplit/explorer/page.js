// Texts are put in as text nodes only: whatever a document holds, it is shown and not run.
const byId = (id) => document.getElementById(id);
const make = (name, text, ...children) => {
  const element = document.createElement(name);
  if (text) element.textContent = text;
  element.append(...children);
  return element;
};
const classed = (name, element) => { element.className = name; return element; };
const counted = (count, noun) => `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;
const COLOURS = ["#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#3ca951", "#ff8ab7", "#a463f2", "#97bbf5", "#9c6b4e",
                 "#77a8a3", "#c23b8a", "#5b7c1f"];
const OTHERS = "#a3abb2";  // colour of labels that are not in the legend
const SIDE = 10000;  // of the square that holds all points
const SHOWN_AT_ONCE = 20;  // results of a search
let data, cutter, cut, index = null;  // of the words
let view = { x: SIDE / 2, y: SIDE / 2, scale: 1 };
let kinds, colours, byLabel, hidden = new Set();  // kinds: the label of each document, or its group
let chosen = null, found = null, shownHits = SHOWN_AT_ONCE;

async function start() {
  const bytes = Uint8Array.from(atob(byId("data").textContent), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  data = JSON.parse(await new Response(stream).text());
  cutter = cutterOf(data.words);
  cut = cutter.cut;
  document.title = data.name;
  byId("name").textContent = data.name;
  byId("summary").textContent = data.summary;
  byId("about_map").textContent = data.about_map;
  colour();
  groups();
  measured();
  mouse();
  keys();
  byId("search").addEventListener("focus", makeIndex);
  byId("search").addEventListener("input", (event) => {
    const query = event.target.value;
    history.replaceState(null, "", query ? "#search=" + encodeURIComponent(query) : "#");
    search(query);
  });
  byId("more").addEventListener("click", () => { shownHits += SHOWN_AT_ONCE; listHits(); });
  window.addEventListener("hashchange", route);
  window.addEventListener("resize", draw);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  route();
  document.body.dataset.ready = "true";
}

function route() {
  const [name, text = ""] = location.hash.slice(1).split("=");
  let value = text;
  try { value = decodeURIComponent(text); } catch { /* no encoded text: as it is */ }
  if (name === "search") {
    byId("search").value = value;
    search(value);
    return show(found && found.rows.length ? found.rows[0] : data.opening);
  }
  const known = name === "document" && data.sentences[Number(value)];
  if (known || chosen === null) show(known ? Number(value) : data.opening);
}

// --- the map ---------------------------------------------------------------------------------------------------

// Documents have the colour of their label if the legend has room for most, or else of their group: no two close groups
// look the same.
function colour() {
  const counts = data.label_names.map(() => 0);
  (data.labels || []).forEach((label) => { counts[label] += 1; });
  const frequent = counts.map((_, label) => label).sort((a, b) => counts[b] - counts[a]).slice(0, COLOURS.length);
  byLabel = 2 * frequent.reduce((sum, label) => sum + counts[label], 0) >= data.titles.length;
  if (byLabel) {
    kinds = data.labels;
    colours = counts.map((_, label) => COLOURS[frequent.indexOf(label)] || OTHERS);
    return legend(frequent, counts);
  }
  if (data.labels) {
    const about = `${counted(counts.length, "label")}, too many for colours: points have the colour of their group.`;
    byId("legend").append(classed("faint", make("span", about)));
  }
  kinds = new Array(data.titles.length);
  colours = [];
  const places = data.groups.map((group) => data.points[group.rows[0]]);
  data.groups.forEach((group, number) => {
    group.rows.forEach((row) => { kinds[row] = number; });
    const distances = COLOURS.map((name) => Math.min(...places.slice(0, number)
      .filter((_, other) => colours[other] === name)
      .map(([x, y]) => Math.hypot(x - places[number][0], y - places[number][1]))));
    colours.push(COLOURS[distances.indexOf(Math.max(...distances))]);
  });
}

function dotted(name, text) {
  const button = make("button"), dot = make("i");
  button.type = "button";
  dot.style.background = name;
  button.append(dot, text);
  return button;
}

function legend(labels, counts) {
  for (const label of labels) {
    const button = dotted(colours[label], `${data.label_names[label]} (${counts[label].toLocaleString("en")})`);
    button.title = "Show or hide";
    button.ariaPressed = "true";
    button.addEventListener("click", () => {
      hidden.has(label) ? hidden.delete(label) : hidden.add(label);
      button.ariaPressed = String(!hidden.has(label));
      draw();
    });
    byId("legend").append(button);
  }
  if (counts.length > labels.length) byId("legend").append(make("span", `and ${counts.length - labels.length} more`));
}

const nameOf = (group) => group.words.join(", ") || "(no word sets it apart)";

function groups() {
  byId("groups").querySelector("summary").textContent = `${counted(data.groups.length, "group")}, named by words`;
  const list = make("div");
  data.groups.forEach((group, number) => {
    const button = dotted(byLabel ? "transparent" : colours[number],
                          `${nameOf(group)} (${group.rows.length.toLocaleString("en")})`);
    button.addEventListener("click", () => {
      const [x, y] = data.points[group.rows[0]];
      view = { x, y, scale: 4 };
      location.hash = "document=" + group.rows[0];
      draw();
    });
    list.append(button);
  });
  byId("groups").append(list);
}

function unitOf(canvas) { return Math.min(canvas.width, canvas.height) / (SIDE * 1.06) * view.scale; }

function onScreen(row) {
  const canvas = byId("map"), unit = unitOf(canvas), [x, y] = data.points[row];
  return [canvas.width / 2 + (x - view.x) * unit, canvas.height / 2 - (y - view.y) * unit];
}

function draw() {
  const canvas = byId("map"), ratio = window.devicePixelRatio || 1;
  const style = getComputedStyle(document.documentElement), ink = (name) => style.getPropertyValue(name).trim();
  canvas.width = canvas.clientWidth * ratio;
  canvas.height = canvas.clientHeight * ratio;
  const context = canvas.getContext("2d");
  const radius = Math.max(1.3, Math.min(4, 160 / Math.sqrt(data.points.length))) * ratio * Math.sqrt(view.scale);
  const hits = found && found.words.size ? new Set(found.rows) : null;
  // All documents; while a search lasts, those without its words are faint.
  data.points.forEach((_, row) => {
    if (hidden.has(kinds[row])) return;
    const [x, y] = onScreen(row);
    if (x < 0 || y < 0 || x > canvas.width || y > canvas.height) return;
    context.globalAlpha = hits && !hits.has(row) ? 0.12 : 0.75;
    context.fillStyle = colours[kinds[row]];
    context.beginPath();
    context.arc(x, y, radius, 0, 7);
    context.fill();
  });
  context.globalAlpha = 1;
  drawChosen(context, radius, ratio, ink);
  drawNames(context, radius, ratio, ink);
}

function drawChosen(context, radius, ratio, ink) {
  if (chosen === null) return;
  const [x, y] = onScreen(chosen), others = data.neighbours[chosen].map(onScreen);
  context.lineWidth = ratio;
  context.strokeStyle = ink("--faint");
  context.beginPath();
  for (const [otherX, otherY] of others) { context.moveTo(x, y); context.lineTo(otherX, otherY); }
  context.stroke();
  [...others, [x, y]].forEach(([placeX, placeY], rank) => {
    const isChosen = rank === others.length;
    context.lineWidth = (isChosen ? 3 : 1.5) * ratio;
    context.strokeStyle = ink(isChosen ? "--chosen" : "--ink");
    context.beginPath();
    context.arc(placeX, placeY, radius + (isChosen ? 6 : 2) * ratio, 0, 7);
    context.stroke();
  });
}

// Names of groups, the largest first; one that would cover another is left out until there is room.
function drawNames(context, radius, ratio, ink) {
  const { width, height } = context.canvas, size = 13 * ratio, taken = [];
  context.font = `600 ${size}px system-ui, sans-serif`;
  context.textAlign = "center";
  context.textBaseline = "middle";
  context.lineJoin = "round";
  for (const group of data.groups) {
    const [anchorX, anchorY] = onScreen(group.rows[0]);
    if (!group.words.length || anchorX < 0 || anchorY < 0 || anchorX > width || anchorY > height) continue;
    const text = group.words.slice(0, view.scale < 2 ? 2 : 3).join(", ");
    const half = context.measureText(text).width / 2 + 6 * ratio;
    const x = Math.max(half, Math.min(width - half, anchorX));
    for (const shift of [-1, 1, 0]) {  // above its document, or below, or over it
      const y = Math.max(size, Math.min(height - size, anchorY + shift * (radius + size)));
      const box = [x - half, y - size, x + half, y + size];
      if (taken.some((other) => box[0] < other[2] && other[0] < box[2] && box[1] < other[3] && other[1] < box[3])) continue;
      taken.push(box);
      context.lineWidth = 4 * ratio;
      context.strokeStyle = ink("--paper");
      context.strokeText(text, x, y);
      context.fillStyle = ink("--ink");
      context.fillText(text, x, y);
      break;
    }
  }
}

// The row of the document nearest to a place on the canvas, in its pixels.
function nearest(placeX, placeY, farthest) {
  let best = null, least = farthest ** 2;
  data.points.forEach((_, row) => {
    if (hidden.has(kinds[row])) return;
    const [x, y] = onScreen(row), distance = (x - placeX) ** 2 + (y - placeY) ** 2;
    if (distance < least) { least = distance; best = row; }
  });
  return best;
}

function pointed(event) {
  const canvas = byId("map"), box = canvas.getBoundingClientRect(), ratio = canvas.width / box.width;
  return [(event.clientX - box.left) * ratio, (event.clientY - box.top) * ratio, 14 * ratio];
}

function zoom(factor) {
  if (!factor) view = { x: SIDE / 2, y: SIDE / 2, scale: 1 };
  else view.scale = Math.max(1, Math.min(60, view.scale * factor));
  draw();
}

// `x` and `y` in pixels of the canvas.
function move(x, y) {
  const unit = unitOf(byId("map"));
  view.x += x / unit;
  view.y -= y / unit;
  draw();
}

function mouse() {
  const canvas = byId("map"), tip = byId("tip");
  let dragged = null, moved = false;
  canvas.addEventListener("pointerdown", (event) => { dragged = [event.clientX, event.clientY]; moved = false; });
  window.addEventListener("pointerup", () => { dragged = null; });
  canvas.addEventListener("pointermove", (event) => {
    if (dragged) {
      const [x, y] = [event.clientX - dragged[0], event.clientY - dragged[1]];
      if (!moved && Math.abs(x) + Math.abs(y) < 3) return;
      moved = true;
      dragged = [event.clientX, event.clientY];
      tip.style.display = "none";
      return move(-x * canvas.width / canvas.clientWidth, -y * canvas.width / canvas.clientWidth);
    }
    const row = nearest(...pointed(event));
    tip.style.display = row === null ? "none" : "block";
    if (row === null) return;
    tip.textContent = data.titles[row] + labelText(row);
    tip.style.left = Math.max(0, Math.min(event.clientX + 12, window.innerWidth - 370)) + "px";
    tip.style.top = event.clientY + 14 + "px";
  });
  canvas.addEventListener("pointerleave", () => { tip.style.display = "none"; });
  canvas.addEventListener("click", (event) => {
    const row = moved ? null : nearest(...pointed(event));
    if (row !== null) location.hash = "document=" + row;
  });
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    const [x, y] = pointed(event), before = unitOf(canvas), factor = Math.exp(-event.deltaY / 400);
    view.scale = Math.max(1, Math.min(60, view.scale * factor));
    const gained = 1 / before - 1 / unitOf(canvas);  // what is under the pointer stays there
    view.x += (x - canvas.width / 2) * gained;
    view.y -= (y - canvas.height / 2) * gained;
    draw();
  }, { passive: false });
  canvas.addEventListener("dblclick", () => zoom(0));
  for (const button of byId("zoom").children) {
    button.addEventListener("click", () => zoom(Number(button.dataset.zoom)));
  }
}

function keys() {
  const canvas = byId("map"), input = byId("search");
  canvas.addEventListener("keydown", (event) => {
    const step = canvas.height / 8;
    const actions = {
      ArrowLeft: () => move(-step, 0), ArrowRight: () => move(step, 0),
      ArrowUp: () => move(0, -step), ArrowDown: () => move(0, step),
      "+": () => zoom(1.6), "=": () => zoom(1.6), "-": () => zoom(0.625), 0: () => zoom(0),
      Enter: () => {
        const row = nearest(canvas.width / 2, canvas.height / 2, Infinity);
        if (row !== null) location.hash = "document=" + row;
      },
    };
    if (!actions[event.key] || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    actions[event.key]();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && event.target !== input) {
      event.preventDefault();
      input.select();
    }
    if (event.key === "Escape" && found) {
      input.value = "";
      history.replaceState(null, "", chosen === null ? "#" : "#document=" + chosen);
      search("");
      if (chosen !== null) show(chosen);
    }
    // Up and down go through the titles of a list, from the search box on.
    if (event.key !== "ArrowDown" && event.key !== "ArrowUp") return;
    const list = event.target === input ? byId("hits") : event.target.closest("ol");
    if (!list) return;
    const links = [...list.querySelectorAll("a")], next = links.indexOf(event.target) + (event.key === "ArrowDown" ? 1 : -1);
    if (!links.length) return;
    event.preventDefault();
    (links[next] || (next < 0 && list === byId("hits") ? input : event.target)).focus();
  });
}

// --- documents -------------------------------------------------------------------------------------------------

// A text with the words of the search marked.
function marked(text) {
  if (!found) return [text];
  return piecesOf(text, cutter, found.words).map(([piece, isHit]) => isHit ? classed("hit", make("mark", piece)) : piece);
}

function link(row) {
  const anchor = make("a", "", ...marked(data.titles[row]));
  anchor.href = "#document=" + row;
  return anchor;
}

const labelText = (row) => data.labels ? ` · ${data.label_names[data.labels[row]]}` : "";

// The label and the id of a document, where it has them; an index without titles has ids in their place.
function facts(row) {
  const id = data.ids && data.ids[row] !== data.titles[row] ? ` ${data.ids[row]}` : "";
  return make("span", "", labelText(row), classed("id", make("span", id)));
}

// Of the words of titles and texts: it takes a second or two for 20,000 documents.
function makeIndex() {
  index = index || indexTexts(data.sentences.map((text, row) => `${data.titles[row]} ${text.join(" ")}`), cut);
}

function search(query) {
  const words = [...new Set(cut(query))];
  shownHits = SHOWN_AT_ONCE;
  found = null;
  if (query.trim()) {
    makeIndex();
    found = rank(index, words);
  }
  byId("results").hidden = !found;
  if (found) listHits(words);
  draw();
}

function listHits(words) {
  if (words) {
    const number = make("strong", counted(found.rows.length, "document"));
    const about = !words.length ? ": only very common words were typed"
      : ` with ${words.length > 1 ? "one or more of these words" : "this word"}, the best first (BM25)`;
    byId("count").replaceChildren(number, about);
  }
  byId("hits").replaceChildren(...found.rows.slice(0, shownHits).map((row) => {
    // The sentence with most of the words
    const counts = data.sentences[row].map((sentence) => new Set(cut(sentence).filter((word) => found.words.has(word))).size);
    const best = data.sentences[row][counts.indexOf(Math.max(...counts))] || "";
    return make("li", "", link(row), facts(row), classed("faint", make("p", "", ...marked(best))));
  }));
  byId("more").hidden = found.rows.length <= shownHits;
}

function textOf(row) {
  const text = make("div"), matched = new Set(data.matches[row].filter(Boolean).map((pair) => pair[0]));
  text.id = "text";
  text.tabIndex = 0;
  data.sentences[row].forEach((sentence, number) => {
    if (number) text.append("\n".repeat(data.breaks[row][number]) || " ");
    if (matched.has(number)) text.append(make("mark", "", ...marked(sentence)));
    else text.append(...marked(sentence));
  });
  const left = data.left_out[row];
  if (left) text.append(classed("faint", make("span", `\n… and ${counted(left, "more sentence")}`)));
  if (data.heard) {
    text.append(classed("faint", make("p", "Its vector takes most from these passages (graph attention of the document's node):")));
    for (const [weight, passage] of data.heard[row]) {
      text.append(classed("passage", make("p", `${weight.toFixed(3)} `, make("mark", passage))));
    }
  }
  return text;
}

function neighboursOf(row) {
  const list = make("ol");
  data.neighbours[row].forEach((other, rank) => {
    const score = classed("score", make("span", data.scores[row][rank].toFixed(3)));
    const item = make("li", "", score, link(other), facts(other)), pair = data.matches[row][rank];
    if (pair) {
      for (const [whose, sentence] of [["here ", data.sentences[row][pair[0]]], ["there ", data.sentences[other][pair[1]]]]) {
        item.append(classed("pair", make("p", "", make("span", whose), ...marked(sentence))));
      }
    } else {
      item.append(classed("faint", make("p", "No sentences to compare: they are short, or many documents have them.")));
    }
    list.append(item);
  });
  return list;
}

function show(row) {
  chosen = row;
  const canvas = byId("map");
  draw();
  const [x, y] = onScreen(row);
  if (x < 0 || y < 0 || x > canvas.width || y > canvas.height) {
    [view.x, view.y] = data.points[row];
    draw();
  }
  const note = "By cosine, each with the two sentences that match best; those are marked in the text above.";
  byId("document").replaceChildren(
    make("h2", "", ...marked(data.titles[row]), facts(row)), textOf(row),
    make("h3", "Nearest documents"), classed("faint", make("p", note)), neighboursOf(row));
}

// --- what was measured -----------------------------------------------------------------------------------------

function measured() {
  const place = byId("measured");
  for (const { title, rows } of data.tables) {
    const table = make("table");
    rows.forEach((cells, number) => {
      const line = make("tr");
      cells.forEach((cell) => line.append(make(number ? "td" : "th", cell)));
      table.append(line);
    });
    place.append(make("h2", title), table);
  }
  if (data.curves) {
    const image = make("img");
    image.src = data.curves;
    image.alt = "Loss and probe accuracy during training";
    place.append(make("h2", "Training"), image);
  }
}

start().catch((error) => { byId("summary").textContent = `This page cannot be shown: ${error}`; });
