// The box. Every way its text can change ends in the store: keys, paste, cut, drop, undo, IME, and scripts.

import { say } from "./dom.js";
import { randomSeed } from "./store.js";

const POLL_MS = 200; // for what fires no event: scripts, password managers, some IMEs

export class PromptBox {
  #erased = null; // the text that was there before the box became blank

  constructor(root, store, limit) {
    this.box = root.querySelector("#fl-prompt");
    this.note = root.querySelector("#fl-prompt-note");
    this.clear = root.querySelector("#fl-clear");
    this.store = store;
    this.limit = limit;
    this.box.value = store.get().prompt;
    for (const event of ["input", "change", "compositionend", "cut", "paste", "drop"]) {
      this.box.addEventListener(event, () => queueMicrotask(() => this.#read()));
    }
    setInterval(() => this.#read(), POLL_MS);
    this.clear.addEventListener("click", () => this.write(""));
    store.onChange((state, changed) => {
      if (changed.has("prompt") && state.prompt !== this.box.value) this.write(state.prompt);
      if (changed.has("prompt")) this.#decorate();
    });
    this.#decorate();
  }

  /** Replaces the text as if it had been typed, so that undo still works. */
  write(text) {
    this.box.focus();
    this.box.select();
    const typed = document.execCommand(text === "" ? "delete" : "insertText", false, text);
    if (!typed || this.box.value !== text) this.box.value = text;
    this.#read();
  }

  #read() {
    const prompt = this.box.value;
    const before = this.store.get();
    if (prompt === before.prompt) return;
    this.store.set({ prompt, ...this.#seedFor(prompt, before) });
  }

  // A picture begun in an empty box gets a new seed, unless the seed is kept or the old text comes back.
  #seedFor(prompt, before) {
    if (prompt.trim() === "") {
      if (before.prompt.trim() !== "") this.#erased = before.prompt;
      return {};
    }
    const begun = this.#erased !== null && prompt !== this.#erased && !before.locked;
    this.#erased = null;
    return begun ? { seed: randomSeed() } : {};
  }

  #decorate() {
    const length = [...this.box.value].length;
    this.clear.hidden = length === 0;
    const close = length > this.limit * 0.9;
    say(this.note, close ? `${length.toLocaleString("en")} of ${this.limit.toLocaleString("en")} characters` : "");
    this.note.classList.toggle("fl-wrong", length > this.limit);
  }
}
