// Four pictures of the same text from other seeds; picking one makes its seed the current one.

import { postPreview } from "./api.js";
import { h } from "./dom.js";
import { liveRequest } from "./request.js";
import { randomSeed } from "./store.js";

const COUNT = 4;

export class Variations {
  #turn = 0;
  #of = null; // the request, without its seed, that the four are of

  constructor(root, store, seeds) {
    this.store = store;
    this.seeds = seeds;
    this.list = root.querySelector("#fl-four");
    this.hint = root.querySelector("#fl-vary-hint");
    this.go = root.querySelector("#fl-vary-go");
    this.slots = Array.from({ length: COUNT }, (_, index) => this.#slot(index));
    this.list.append(...this.slots.map((slot) => slot.item));
    this.go.addEventListener("click", () => this.run());
    store.onChange(() => this.#refresh());
    this.#refresh();
  }

  async run() {
    const request = liveRequest(this.store.get());
    if (request === null) return;
    const turn = ++this.#turn;
    this.#of = withoutSeed(request);
    this.hint.hidden = true; // the pictures say it
    this.list.hidden = false;
    this.list.setAttribute("aria-busy", "true");
    await Promise.all(this.slots.map((slot) => this.#fill(slot, { ...request, seed: randomSeed() }, turn)));
    if (turn === this.#turn) this.list.setAttribute("aria-busy", "false");
    this.#refresh();
  }

  #slot(index) {
    const image = h("img", { alt: "", hidden: true, draggable: "false" });
    const note = h("span", { class: "fl-slot-note" });
    const button = h("button", { type: "button", class: "fl-slot", disabled: true, "aria-label": `variation ${index + 1}` }, image, note);
    const slot = { index, item: h("li", {}, button), button, image, note, seed: null };
    button.addEventListener("click", () => this.seeds.use(slot.seed, true));
    return slot;
  }

  async #fill(slot, request, turn) {
    slot.item.dataset.state = "waiting";
    slot.note.textContent = "";
    let answer;
    try {
      answer = await postPreview(request);
    } catch (error) {
      if (turn === this.#turn) this.#failed(slot, error);
      return;
    }
    if (turn !== this.#turn) return;
    slot.seed = answer.seed;
    slot.image.src = `data:image/${answer.format ?? "jpeg"};base64,${answer.image_b64}`;
    slot.image.hidden = false;
    slot.button.disabled = false;
    slot.button.dataset.seed = answer.seed;
    slot.button.title = `seed ${answer.seed}`;
    slot.button.setAttribute("aria-label", `variation ${slot.index + 1}, seed ${answer.seed}`);
    slot.item.dataset.state = "ready";
    this.#refresh();
  }

  #failed(slot, error) {
    slot.image.hidden = true;
    slot.button.disabled = true;
    slot.item.dataset.state = "failed";
    slot.note.textContent = error.code === "blocked" ? "withheld" : error.message;
  }

  #refresh() {
    const state = this.store.get();
    const request = liveRequest(state);
    this.go.disabled = request === null;
    const stale = this.#of !== null && (request === null || withoutSeed(request) !== this.#of);
    this.list.dataset.stale = String(stale);
    for (const slot of this.slots) slot.button.setAttribute("aria-pressed", String(slot.seed === state.seed && !stale));
  }
}

function withoutSeed({ seed: _seed, ...rest }) {
  return JSON.stringify(rest);
}
