// Says what is being waited for, when a wait is long enough to be worth a word.

import { isReady } from "./api.js";

const GAP_MS = 1_500;
const SLOW_MS = 2_500;

export class Patience {
  #behind = false;
  #up = true;
  #timer = null;

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

  #plan() {
    clearTimeout(this.#timer);
    this.stage.word("");
    if (!this.#up) this.#timer = setTimeout(() => this.stage.word("connection lost, trying again"), GAP_MS);
    else if (this.#behind) this.#timer = setTimeout(() => this.#slow(), SLOW_MS);
  }

  async #slow() {
    const ready = await isReady();
    if (!this.#behind || !this.#up) return;
    this.stage.word(ready ? "still drawing this one" : "warming up: the model is loading");
    this.#timer = setTimeout(() => this.#slow(), SLOW_MS);
  }
}
