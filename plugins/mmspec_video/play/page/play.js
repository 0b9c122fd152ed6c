// The page of `mmspec play`: keys go to the server, frames come back, one for every picture and key.

import { at, connect, picture, show } from "/shared/page.js";

const ARROWS = { ArrowUp: "forward", ArrowLeft: "left", ArrowRight: "right", ArrowDown: "stay" };
const BARS = 64; // frames in the strip
const LIMIT = 400; // milliseconds: the top of the strip

const over = () => show("the walk is over: begin anew");
const tell = connect("play", { worlds: listWorlds, begun, frame, clip, over });

let columns = {}; // of the frames of worlds of codes
let tours = {}; // the actions of walks by themselves, by world
let panes = []; // what each picture shows
let actions = [];
let held = null; // the action whose key is down
let next = null; // the action of a key that came too early
let walking = null; // the actions of a walk by itself that are left
let asked = 0; // keys that were sent
let thinking = false;

function listWorlds(message) {
  for (const world of message.worlds) {
    at("world").append(new Option(world.name, world.name));
    columns[world.name] = world.columns;
    tours[world.name] = world.tour;
  }
  at("depth").max = message.deepest;
  start();
}

function start() {
  show("");
  walking = held = next = null;
  tell({ type: "start", world: at("world").value, seed: Number(at("seed").value), depth: Number(at("depth").value) });
}

function begun(message) {
  actions = message.actions;
  asked = 0;
  thinking = false;
  panes = message.panes.map((name) => {
    const section = at("pane").content.cloneNode(true).firstElementChild;
    section.querySelector("h2").textContent = name;
    section.querySelector("img").src = picture(message.png);
    return { section, waits: [], hits: 0, pictures: [] };
  });
  at("panes").replaceChildren(...panes.map((pane) => pane.section));
  at("keys").replaceChildren(...actions.map((action) => {
    const button = document.createElement("button");
    button.textContent = action;
    button.onclick = () => press(action);
    return button;
  }));
  at("equal").textContent = "";
}

function frame(message) {
  const pane = panes[message.pane];
  const within = (name) => pane.section.querySelector(`.${name}`);
  pane.waits.push({ wait: message.wait * 1000, hit: message.hit });
  pane.hits += message.hit;
  pane.pictures.push(message.png);
  pane.section.querySelector("img").src = picture(message.png);
  const all = pane.waits.map((frame) => frame.wait);
  const mean = all.reduce((a, b) => a + b) / all.length;
  within("frames").textContent = `${message.number} · ${(1000 / Math.max(mean, 1)).toFixed(1)} a second`;
  within("waited").textContent = `${Math.round(all.at(-1))} ms, mean ${Math.round(mean)} ms`;
  within("hits").textContent = `${pane.hits} of ${all.length}`;
  within("discarded").textContent = message.discarded;
  draw(pane);
  if (message.passes) {
    drawPasses(within("codes"), message.passes, columns[at("world").value]);
    hideAhead(pane.section);
  }
  compare();
  if (panes.every((other) => other.waits.length >= asked)) think();
}

function draw(pane) {
  const canvas = pane.section.querySelector(".strip");
  const brush = canvas.getContext("2d");
  const style = getComputedStyle(at("panes"));
  const wide = canvas.width / BARS;
  brush.clearRect(0, 0, canvas.width, canvas.height);
  pane.waits.slice(-BARS).forEach(({ wait, hit }, number) => {
    const high = Math.max(1, Math.min(1, wait / LIMIT) * canvas.height);
    brush.fillStyle = style.getPropertyValue(hit ? "--hit" : "--miss");
    brush.fillRect(number * wide, canvas.height - high, wide - 1, high);
  });
}

// The frame's codes, in the colour of the pass that brought them.
function drawPasses(figure, passes, wide) {
  const canvas = figure.querySelector("canvas");
  const brush = canvas.getContext("2d");
  const [width, height] = [canvas.width / wide, (canvas.height * wide) / passes.length];
  passes.forEach((pass, code) => {
    brush.fillStyle = `hsl(${(67 * pass) % 360} 60% 55%)`;
    brush.fillRect((code % wide) * width, Math.floor(code / wide) * height, width - 1, height - 1);
  });
  figure.querySelector("figcaption").textContent = `${passes.length} codes in ${new Set(passes).size} passes`;
  figure.hidden = false;
}

// No frame of codes is made before its key.
function hideAhead(section) {
  for (const part of section.querySelectorAll(".ahead")) part.hidden = true;
}

function compare() {
  const both = Math.min(...panes.map((pane) => pane.pictures.length));
  let same = 0;
  for (let number = 0; number < both; number++) {
    same += panes.every((pane) => pane.pictures[number] === panes[0].pictures[number]);
  }
  at("equal").textContent = `${same} of ${both} frames are equal, pixel by pixel`;
}

// All pictures show the frames that were asked for: the next key counts after the time of thinking.
function think() {
  thinking = true;
  setTimeout(() => {
    thinking = false;
    const action = walking?.shift() ?? next ?? held;
    next = null;
    if (action) press(action);
  }, Number(at("think").value));
}

function press(action) {
  const waiting = panes.some((pane) => pane.waits.length < asked);
  if (!panes.length || !actions.includes(action)) return;
  if (waiting || thinking) {
    next = action; // of keys that come too early, the last one counts
    return;
  }
  asked += 1;
  tell({ type: "key", action });
}

function clip(message) {
  const link = document.createElement("a");
  const mime = message.name.endsWith("mp4") ? "video/mp4" : "image/gif";
  link.href = `data:${mime};base64,${message.data}`;
  link.download = message.name;
  link.click();
}

addEventListener("keydown", (event) => {
  const action = ARROWS[event.key];
  if (!action || event.target.matches("input, select")) return;
  event.preventDefault();
  held = action;
  if (!event.repeat) press(action);
});
addEventListener("keyup", (event) => {
  if (ARROWS[event.key] === held) held = null;
});
at("settings").addEventListener("submit", (event) => {
  event.preventDefault();
  start();
});
at("world").onchange = start;
at("depth").onchange = start;
for (const [name, unit] of [["depth", ""], ["think", " ms"]]) {
  at(name).oninput = () => { at(`${name}-shown`).textContent = at(name).value + unit; };
}
at("auto").onclick = () => {
  walking = [...tours[at("world").value]];
  press(walking.shift());
};
for (const button of document.querySelectorAll(".save")) {
  button.onclick = () => tell({ type: "save", as: button.value });
}
