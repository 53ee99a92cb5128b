// The live socket: every change becomes a revision, only the newest is sent, no older picture comes after a newer one.

import { socketUrl } from "./api.js";

const THROTTLE_MS = 64;
const SILENCE_MS = 30_000; // an open socket that leaves the newest revision unanswered for this long is given up
const RETRY_MS = [250, 8_000];
const MOST_CHARACTERS = 60_000; // the server reads no longer message; the bounds of a prompt are its own to name
const UNAVAILABLE_MS = 1_000;

const TOO_LONG = { code: "invalid", field: "prompt", message: "prompt: is far longer than what can be read" };

/** Splits a binary frame: 4 bytes of header length, JSON header, image bytes. */
export function parseFrame(buffer) {
  const length = new DataView(buffer).getUint32(0);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  return { header, bytes: new Uint8Array(buffer, 4 + length) };
}

export class Live {
  rev = 0; // the newest wanted
  #answered = 0; // the newest that the server has answered, by whatever
  #floor = 0; // frames below this are of the past
  #requests = new Map(); // rev → request, from the last shown on
  #unsent = false;
  #sentAt = -Infinity;
  #timer = null;
  #silence = null;
  #socket = null;
  #failures = 0;
  #on;

  /** @param on {frame({header, bytes, request}), trouble({kind, error, rev}), behind(boolean), link(up)} */
  constructor(on) {
    this.#on = on;
    this.#connect();
  }

  get behind() {
    return this.#answered < this.rev;
  }

  /** The request that now stands; null when there is nothing to draw. */
  want(request) {
    this.rev += 1;
    clearTimeout(this.#timer);
    if (request === null) {
      this.#unsent = false;
      this.#floor = this.rev;
      this.#settle(this.rev);
      return this.rev;
    }
    this.#requests.set(this.rev, request);
    this.#unsent = true;
    this.#on.behind(true);
    const wait = this.#sentAt + THROTTLE_MS - performance.now();
    if (wait <= 0) this.flush();
    else this.#timer = setTimeout(() => this.flush(), wait);
    return this.rev;
  }

  /** Sends the newest now, if it has not gone yet. */
  flush() {
    clearTimeout(this.#timer);
    if (!this.#unsent || this.#socket?.readyState !== WebSocket.OPEN) return;
    const text = JSON.stringify({ rev: this.rev, ...this.#requests.get(this.rev) });
    this.#unsent = false;
    if (text.length > MOST_CHARACTERS) return this.#text({ rev: this.rev, error: TOO_LONG });
    this.#socket.send(text);
    this.#sentAt = performance.now();
    this.#listenFor();
  }

  #connect() {
    const socket = new WebSocket(socketUrl());
    socket.binaryType = "arraybuffer";
    this.#socket = socket;
    socket.onopen = () => {
      this.#failures = 0;
      this.#on.link(true);
      this.#again();
    };
    socket.onmessage = ({ data }) => {
      if (this.#socket !== socket) return;
      typeof data === "string" ? this.#text(JSON.parse(data)) : this.#frame(parseFrame(data));
    };
    socket.onclose = () => this.#lost(socket);
  }

  #lost(socket) {
    if (this.#socket !== socket) return;
    this.#socket = null;
    clearTimeout(this.#silence);
    this.#on.link(false);
    const wait = Math.min(RETRY_MS[1], RETRY_MS[0] * 2 ** this.#failures) * (0.75 + Math.random() / 2);
    this.#failures += 1;
    setTimeout(() => this.#connect(), wait);
  }

  #again() {
    if (!this.#requests.has(this.rev)) return;
    this.#unsent = true;
    this.flush();
  }

  async #frame({ header, bytes }) {
    if (!this.#passes(header.rev)) return;
    const request = this.#requests.get(header.rev);
    this.#floor = header.rev;
    for (const rev of this.#requests.keys()) if (rev < header.rev) this.#requests.delete(rev);
    await this.#on.frame({ header, bytes, request });
    this.#settle(header.rev); // only now it is on the screen
  }

  #text(message) {
    if (!this.#passes(message.rev)) return;
    const error = message.error ?? message.blocked ?? { message: "no picture" };
    const kind = message.blocked ? "blocked" : (error.code ?? "error");
    this.#floor = message.rev;
    this.#on.trouble({ kind, error, rev: message.rev });
    if (error.code === "unavailable") this.#askLater(message.rev);
    else this.#settle(message.rev);
  }

  // No worker yet: the same text again, under a new number as the server wants them to grow.
  #askLater(rev) {
    setTimeout(() => this.rev === rev && this.want(this.#requests.get(rev)), UNAVAILABLE_MS);
  }

  #passes(rev) {
    return Number.isInteger(rev) && rev >= this.#floor && this.#requests.has(rev);
  }

  #settle(rev) {
    this.#answered = Math.max(this.#answered, rev);
    if (this.behind) return;
    clearTimeout(this.#silence);
    this.#on.behind(false);
  }

  #listenFor() {
    clearTimeout(this.#silence);
    const socket = this.#socket;
    this.#silence = setTimeout(() => {
      this.#lost(socket); // not waiting for a closing handshake that a dead peer will never answer
      socket.close();
    }, SILENCE_MS);
  }
}
