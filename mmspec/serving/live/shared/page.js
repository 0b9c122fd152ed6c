// What all pages share: their parts by id, and the socket to their session.

export const at = (id) => document.getElementById(id);
export const show = (text) => { at("says").textContent = text; };
export const picture = (png) => `data:image/png;base64,${png}`;

// Connects to the session of a stage; `follow` has a function for every kind of message. Returns the function that sends.
export function connect(stage, follow) {
  const socket = new WebSocket(`ws://${location.host}/${stage}/live`);
  const all = { error: (message) => show(message.says), ...follow };
  socket.onmessage = (event) => {
    const message = JSON.parse(event.data);
    all[message.type](message);
  };
  socket.onclose = () => show("the server is gone: reload the page when it is back");
  return (message) => socket.readyState === WebSocket.OPEN && socket.send(JSON.stringify(message));
}
