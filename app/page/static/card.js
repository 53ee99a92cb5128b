// One render in the strip: its state, place, progress and picture.

import { h, icon, say, seconds, shorten } from "./dom.js";
import { likeness, sayLikeness } from "./likeness.js";

export const ENDED = new Set(["done", "rejected", "blocked", "cancelled", "failed"]);
const CROSS = "M6 6l8 8M14 6l-8 8";
const WORDS = {
  decoding: "developing",
  checking: "checking",
  rejected: "not accepted",
  blocked: "withheld",
  cancelled: "cancelled",
  failed: "failed",
};

const QUIET_MS = 6_000; // no news of a render for so long, and something is amiss

export class Card {
  #refetched = false;
  #heardAt = performance.now();
  #wait = { stalled: false, timed: false };

  /** @param on {open, cancel, reuse, refetch, changed} */
  constructor(record, on) {
    this.record = record;
    this.on = on;
    this.#build();
    this.#show();
    if (record.preview_url) this.preview(new URL(record.preview_url, document.baseURI).href);
  }

  get created() {
    return this.record.created_s ?? 0;
  }

  get done() {
    return this.record.state === "done";
  }

  get queued() {
    return this.record.state === "queued";
  }

  /** Nothing was heard of it for longer than a worker at work is silent. */
  get quiet() {
    return !this.ended && performance.now() - this.#heardAt > QUIET_MS;
  }

  get ended() {
    return ENDED.has(this.record.state);
  }

  /** A render ends once: an answer that was under way when the end came does not undo it. */
  update(record) {
    if (this.ended && record.state !== undefined && !ENDED.has(record.state)) return;
    const before = placeOf(this.record);
    this.record = { ...this.record, ...record };
    if (placeOf(this.record) !== before) this.#heard();
    this.#show();
  }

  /** Only what an event says; fields it lacks keep their value. */
  event({ state, step, steps, error }) {
    this.#heard();
    const progress = typeof step === "number" ? { step, steps: steps ?? this.record.progress.steps } : this.record.progress;
    this.update({ state: state ?? this.record.state, progress, error: error ?? this.record.error });
  }

  glimpse(event) {
    this.event(event);
    if (this.done) return;
    this.image.src = `data:image/${event.format};base64,${event.image_b64}`;
    this.image.hidden = false;
    this.element.dataset.glimpse = "true";
  }

  /** The accepted preview stands in until there is more to see. */
  preview(url) {
    if (!this.done && this.element.dataset.glimpse !== "true") {
      this.image.src = url;
      this.image.hidden = false;
    }
  }

  /** stalled: no worker is at it; timed: what was predicted still holds. */
  wait({ stalled, timed }) {
    this.#wait = { stalled, timed };
    this.#show();
  }

  complain(text) {
    say(this.status, text);
  }

  /** Whether its status says how like its preview it is. */
  get likened() {
    return this.done && this.record.images.length === 1 && typeof this.record.handoff?.similarity === "number";
  }

  /** Seconds until it is done, as predicted when it was accepted, and never less than what is left of its own work; null
      when nothing was predicted. */
  get left() {
    const { created_s, predicted_s, predicted_gpu_s, progress } = this.record;
    if (!predicted_s || this.ended) return null;
    const undone = progress?.steps ? 1 - progress.step / progress.steps : 1;
    const left = Math.max(created_s + predicted_s - Date.now() / 1000, undone * (predicted_gpu_s ?? 0));
    return left > 0 ? left : null;
  }

  #heard() {
    this.#heardAt = performance.now();
    this.#wait.stalled = false;
  }

  #build() {
    this.image = h("img", { alt: "", hidden: true, draggable: "false", onerror: () => this.#broken() });
    this.open = h("button", { type: "button", class: "fl-card-open", onclick: () => this.on.open() }, this.image);
    this.count = h("span", { class: "fl-card-count", hidden: true });
    this.cancel = h("button", { type: "button", class: "fl-icon fl-card-cancel", "aria-label": "Cancel", title: "Cancel", onclick: () => this.on.cancel() }, icon(CROSS));
    this.bar = h("progress", { class: "fl-bar fl-card-bar", max: 1, value: 0, "aria-label": "progress" });
    this.status = h("p", { class: "fl-card-status", role: "note" });
    this.prompt = h("p", { class: "fl-card-prompt" });
    this.again = h("button", { type: "button", class: "fl-quiet fl-card-again", hidden: true, onclick: () => this.on.reuse() }, "Use prompt");
    this.element = h(
      "li",
      { class: "fl-card" },
      h("div", { class: "fl-card-picture" }, this.open, this.count, this.cancel, this.bar),
      this.status,
      this.prompt,
      this.again,
    );
  }

  #show() {
    const { id, state, recipe, progress, images = [] } = this.record;
    const { done, ended } = this;
    this.element.dataset.id = id;
    this.element.dataset.state = state;
    this.element.dataset.seed = recipe?.seed ?? "";
    const prompt = recipe?.prompt ?? "";
    say(this.prompt, shorten(prompt, 120));
    this.prompt.title = prompt;
    sayLikeness(this.status, statusOf(this.record, this.#wait.stalled, this.#wait.timed ? this.left : null), this.likened);
    this.open.disabled = !done;
    this.open.setAttribute("aria-label", done ? `Open: ${prompt}` : `${this.status.textContent}: ${prompt}`);
    const hadFocus = document.activeElement === this.cancel;
    this.cancel.hidden = ended;
    this.cancel.setAttribute("aria-label", `Cancel: ${shorten(prompt, 60)}`);
    this.bar.hidden = ended || state === "queued";
    this.bar.value = barOf(state, progress);
    this.again.hidden = !ended || done;
    if (ended && hadFocus) (done ? this.open : this.again).focus(); // the button under the finger is gone
    this.count.hidden = images.length < 2;
    this.count.textContent = String(images.length);
    if (done && images.length > 0 && this.image.dataset.final !== images[0].sha256) this.#final(images[0], prompt);
    this.on.changed(this);
  }

  #final(image, prompt) {
    this.image.dataset.final = image.sha256;
    this.image.src = new URL(image.url, document.baseURI).href;
    this.image.alt = prompt;
    this.image.hidden = false;
  }

  // A signed address that ran out: ask for a new one, once.
  #broken() {
    this.image.hidden = true;
    if (this.#refetched || !this.done) return;
    this.#refetched = true;
    delete this.image.dataset.final;
    this.on.refetch();
  }
}

function statusOf({ state, position, progress, handoff, images, error }, stalled, left) {
  if (stalled && !ENDED.has(state)) return "waiting for a worker";
  const time = left === null ? "" : ` · ~${seconds(left)}`;
  if (state === "queued") return (position > 1 ? `${ordinal(position)} in the queue` : "next in the queue") + time;
  if (state === "running") return (progress?.steps ? `${progress.step} of ${progress.steps}` : "painting") + time;
  if (state === "done") return endOf(handoff?.similarity, images);
  const word = WORDS[state] ?? state;
  return error?.message && state !== "cancelled" ? `${word}: ${error.message}` : word;
}

// Of a set only the first picture is compared with the preview: the viewer says so there.
function endOf(similarity, images) {
  if (images.length > 1) return `${images.length} pictures`;
  return typeof similarity === "number" ? likeness(similarity) : "done";
}

const placeOf = ({ state, position, progress }) => `${state} ${position} ${progress?.step}`;

function barOf(state, progress) {
  if (state === "decoding" || state === "checking") return 1;
  return progress?.steps ? progress.step / progress.steps : 0;
}

function ordinal(n) {
  const tail = n % 100 > 10 && n % 100 < 14 ? "th" : (["th", "st", "nd", "rd"][n % 10] ?? "th");
  return `${n}${tail}`;
}
