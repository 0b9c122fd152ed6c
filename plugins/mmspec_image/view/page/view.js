// The page of `mmspec view image`: pictures come from the server after every round.

const at = (id) => document.getElementById(id);
const socket = new WebSocket(`ws://${location.host}/image/live`);

let panes = [];

socket.onmessage = (event) => {
  const message = JSON.parse(event.data);
  ({ methods, begun, round, done, error: (m) => { at("says").textContent = m.says; } })[message.type](message);
};
socket.onclose = () => { at("says").textContent = "the server is gone: reload the page when it is back"; };

function methods(message) {
  for (const name of message.methods) at("method").append(new Option(name, name));
  draw();
}

function draw() {
  const numbers = { seed: Number(at("seed").value), guidance: Number(at("guidance").value) };
  socket.send(JSON.stringify({ type: "draw", caption: at("caption").value, method: at("method").value, ...numbers }));
}

function begun(message) {
  at("says").textContent = at("equal").textContent = "";
  panes = message.panes.map((name) => {
    const section = at("pane").content.cloneNode(true).firstElementChild;
    section.querySelector("h2").textContent = name;
    return { section, picture: null };
  });
  at("panes").replaceChildren(...panes.map((pane) => pane.section));
}

function round(message) {
  const { section } = panes[message.pane];
  section.querySelector("img").src = `data:image/png;base64,${message.png}`;
  section.querySelector("progress").value = message.drawn / message.of;
  section.querySelector(".count").textContent =
    `${message.drawn} of ${message.of} codes after ${message.number} passes, ${message.seconds.toFixed(2)} s`;
}

function done(message) {
  const pane = panes[message.pane];
  pane.picture = message.png;
  pane.section.querySelector("img").src = `data:image/png;base64,${message.png}`;
  pane.section.querySelector("progress").value = 1;
  pane.section.querySelector(".report").textContent = message.says;
  if (!panes.every((other) => other.picture)) return;
  const same = panes.every((other) => other.picture === panes[0].picture);
  at("equal").textContent = same ? "the pictures are equal, pixel by pixel" : "the pictures differ";
}

at("settings").onsubmit = (event) => {
  event.preventDefault();
  draw();
};
