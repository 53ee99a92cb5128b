// The newest accepted render, in one line under Accept: progress without leaving the picture.

import { say } from "./dom.js";
import { sayLikeness } from "./likeness.js";

export class Follow {
  #card = null;

  /** @param on {open(card, from), cancel(card)} */
  constructor(root, on) {
    this.line = root.querySelector("#fl-follow");
    this.text = root.querySelector("#fl-follow-text");
    this.bar = root.querySelector("#fl-follow-bar");
    this.button = root.querySelector("#fl-follow-do");
    this.button.addEventListener("click", () => (this.#card.done ? on.open(this.#card, this.button) : on.cancel(this.#card)));
  }

  /** From now on this one. */
  watch(card) {
    this.#card = card;
    this.line.hidden = false;
    this.show(card);
  }

  show(card) {
    if (card !== this.#card) return;
    sayLikeness(this.text, card.status.textContent, card.likened);
    this.bar.hidden = card.ended;
    this.bar.value = card.bar.value;
    this.button.hidden = card.ended && !card.done;
    say(this.button, card.done ? "Open" : "Cancel");
    this.line.dataset.state = card.record.state;
  }
}
