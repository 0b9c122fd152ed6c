// The page of `mmspec view text`: rounds come from the server as they are decoded.

import { at, connect, show } from "/shared/page.js";

const COLOURS = 6;
const tell = connect("text", { methods, begun, round, done });

let rounds = 0;

function element(kind, text, ...classes) {
  const made = document.createElement(kind);
  made.textContent = text;
  made.classList.add(...classes);
  return made;
}

function methods(message) {
  for (const name of message.methods) at("method").append(new Option(name, name));
  at("method").value = "draft-tree";
  at("tokens").max = message.most;
  write();
}

function write() {
  const numbers = Object.fromEntries(["tokens", "temperature", "seed"].map((name) => [name, Number(at(name).value)]));
  tell({ type: "write", prompt: at("prompt").value, method: at("method").value, ...numbers });
}

function begun(message) {
  rounds = 0;
  show("");
  at("report").textContent = "";
  at("round").hidden = true;
  at("text").replaceChildren(element("span", message.prompt, "prompt"));
}

function round(message) {
  const accepted = message.nodes.filter((node) => node.accepted).length;
  const span = element("span", "", "round", `c${rounds % COLOURS}`);
  message.tokens.forEach((token, number) => {
    const shown = element("span", token.text, ...(number < accepted ? [] : ["own"]));
    shown.title = `probability ${token.probability.toFixed(3)}, ahead of the second by ${token.margin.toFixed(3)}`;
    span.append(shown);
  });
  const number = rounds++;
  span.onclick = () => open(span, message, number, accepted);
  at("text").append(span);
}

function open(span, message, number, accepted) {
  document.querySelector(".round.open")?.classList.remove("open");
  span.classList.add("open");
  const drafted = `${accepted} of ${message.nodes.length} drafted tokens accepted`;
  at("round").querySelector("h2").textContent = number ? `Round ${number}: ${drafted}` : "Behind the prompt: no draft";
  at("round").querySelector("table").replaceChildren(...rows(message.nodes));
  at("round").hidden = false;
}

// The draft as a tree, a node a line, children below their parent.
function rows(nodes, parent = -1, depth = 0) {
  return nodes.flatMap((node, number) => {
    if (node.parent !== parent) return [];
    const row = document.createElement("tr");
    row.className = node.accepted ? "accepted" : "refused";
    row.append(element("td", `${"  ".repeat(depth)}${depth ? "└ " : ""}${JSON.stringify(node.text).slice(1, -1)}`));
    row.append(element("td", node.probability.toFixed(3)));
    return [row, ...rows(nodes, number, depth + 1)];
  });
}

function done(message) {
  at("report").textContent = message.says;
}

at("settings").onsubmit = (event) => {
  event.preventDefault();
  write();
};
