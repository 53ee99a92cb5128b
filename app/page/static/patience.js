// Says what is being waited for, when a wait is long enough to be worth a word.

import { awaited } from "./api.js";

const GAP_MS = 1_500;
const SLOW_MS = 2_500;
const ASK_AGAIN_MS = 10_000; // a server that is not ready answers 503, which browsers write to their console
const LOST = "connection lost, trying again";

export class Patience {
  #behind = false;
  #up = true;
  #timer = null;
  #word = "";

  constructor(stage) {
    this.stage = stage;
  }

  /** The newest text has, or has not, its picture. */
  behind(is) {
    if (is === this.#behind) return;
    this.#behind = is;
    this.#plan();
  }

  /** The socket is open, or not. */
  link(up) {
    if (up === this.#up) return;
    this.#up = up;
    this.#plan();
  }

  // A word about the wait stands over a short reconnection: the wait goes on.
  #plan() {
    clearTimeout(this.#timer);
    if (this.#up && (!this.#behind || this.#word === LOST)) this.#say("");
    if (!this.#up) this.#timer = setTimeout(() => this.#say(LOST), GAP_MS);
    else if (this.#behind) this.#timer = setTimeout(() => this.#slow(), this.#word === "" ? SLOW_MS : ASK_AGAIN_MS);
  }

  async #slow() {
    const reason = await awaited();
    if (!this.#behind || !this.#up) return;
    clearTimeout(this.#timer); // another may have begun meanwhile
    this.#say(reason || "still drawing this one");
    this.#timer = setTimeout(() => this.#slow(), ASK_AGAIN_MS);
  }

  #say(word) {
    this.#word = word;
    this.stage.word(word);
  }
}
