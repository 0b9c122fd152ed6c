// The page of `mmspec view image`: pictures come from the server after every round.

import { at, connect, picture, show } from "/shared/page.js";

const tell = connect("image", { methods, begun, round, done });

let panes = [];

function methods(message) {
  for (const name of message.methods) at("method").append(new Option(name, name));
  draw();
}

function draw() {
  const numbers = { seed: Number(at("seed").value), guidance: Number(at("guidance").value) };
  tell({ type: "draw", caption: at("caption").value, method: at("method").value, ...numbers });
}

function begun(message) {
  show("");
  at("equal").textContent = "";
  panes = message.panes.map((name) => {
    const section = at("pane").content.cloneNode(true).firstElementChild;
    section.querySelector("h2").textContent = name;
    return { section, png: null };
  });
  at("panes").replaceChildren(...panes.map((pane) => pane.section));
}

function round(message) {
  const { section } = panes[message.pane];
  section.querySelector("img").src = picture(message.png);
  section.querySelector("progress").value = message.drawn / message.of;
  section.querySelector(".count").textContent =
    `${message.drawn} of ${message.of} codes after ${message.number} passes, ${message.seconds.toFixed(2)} s`;
}

function done(message) {
  const pane = panes[message.pane];
  pane.png = message.png;
  pane.section.querySelector("img").src = picture(message.png);
  pane.section.querySelector("progress").value = 1;
  pane.section.querySelector(".report").textContent = message.says;
  if (!panes.every((other) => other.png)) return;
  const same = panes.every((other) => other.png === panes[0].png);
  at("equal").textContent = same ? "the pictures are equal, pixel by pixel" : "the pictures differ";
}

at("settings").onsubmit = (event) => {
  event.preventDefault();
  draw();
};
