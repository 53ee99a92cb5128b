// The seed: typed, kept, shuffled, and back again.

import { say } from "./dom.js";
import { MAX_SEED, parseSeed, randomSeed } from "./store.js";

const RULE = `seed: a whole number from 0 to ${MAX_SEED}`;

export class SeedBox {
  #before = []; // seeds to go back to

  constructor(root, store) {
    this.store = store;
    this.input = root.querySelector("#fl-seed");
    this.error = root.querySelector("#fl-seed-error");
    this.lock = root.querySelector("#fl-lock");
    this.backButton = root.querySelector("#fl-back");
    this.input.addEventListener("input", () => this.#typed());
    this.input.addEventListener("blur", () => this.input.value.trim() === "" && this.#show());
    this.input.addEventListener("keydown", (event) => event.key === "Escape" && this.#show());
    this.lock.addEventListener("click", () => store.set({ locked: !store.get().locked }));
    root.querySelector("#fl-shuffle").addEventListener("click", () => this.shuffle());
    this.backButton.addEventListener("click", () => this.back());
    store.onChange((state, changed) => {
      if (changed.has("seed") && parseSeed(this.input.value) !== state.seed) this.#show();
      if (changed.has("locked")) this.#showLock();
    });
    this.#show();
    this.#showLock();
    this.#showBack();
  }

  /** Why the seed that stands in the box cannot be used, as a sentence; null when it is the one that pictures are of. */
  problem() {
    return parseSeed(this.input.value) === this.store.get().seed ? null : RULE;
  }

  /** Takes a seed and remembers the one before. */
  use(seed, locked) {
    const now = this.store.get().seed;
    if (seed === now) return this.store.set({ locked });
    this.#before.push(now);
    this.store.set({ seed, locked });
    this.#show();
    this.#showBack();
  }

  shuffle() {
    this.use(randomSeed(), this.store.get().locked);
  }

  back() {
    if (this.#before.length === 0) return;
    this.store.set({ seed: this.#before.pop() });
    this.#showBack();
  }

  #typed() {
    const text = this.input.value;
    const seed = parseSeed(text);
    const wrong = seed === null && text.trim() !== "";
    this.input.setAttribute("aria-invalid", String(wrong));
    this.error.hidden = !wrong;
    say(this.error, wrong ? RULE : "");
    if (seed !== null) this.store.set({ seed, locked: true }); // a typed seed is meant to stay
  }

  #show() {
    this.input.value = String(this.store.get().seed);
    this.input.setAttribute("aria-invalid", "false");
    this.error.hidden = true;
  }

  #showLock() {
    this.lock.setAttribute("aria-pressed", String(this.store.get().locked));
  }

  #showBack() {
    const last = this.#before.at(-1);
    this.backButton.setAttribute("aria-disabled", String(last === undefined)); // not disabled: that would lose the focus
    this.backButton.title = last === undefined ? "Back to the seed before (Alt Z)" : `Back to seed ${last} (Alt Z)`;
  }
}
