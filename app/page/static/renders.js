// The owner's renders: history from the server, changes from the feed, one card each.

import { awaited, cancelRender, getHistory, getRender } from "./api.js";
import { Card, ENDED } from "./card.js";
import { say, seconds } from "./dom.js";
import { Feed } from "./feed.js";
import { Follow } from "./follow.js";

const POLL_MS = 2_000; // only while the feed is down and something is under way
const LATE_MS = 400;
const READY_MS = 10_000; // between two questions whether a worker is there

export class Renders {
  #cards = new Map(); // id → Card
  #next = null;
  #late = null;
  #loaded = false;
  #ready = true;
  #askedAt = -Infinity;

  /** @param on {open(record, from), reuse(recipe)}; from is where the focus returns to */
  constructor(root, on) {
    this.on = on;
    this.list = root.querySelector("#fl-cards");
    this.none = root.querySelector("#fl-none");
    this.queue = root.querySelector("#fl-queue");
    this.older = root.querySelector("#fl-older");
    this.older.addEventListener("click", () => this.#load(this.#next));
    this.follow = new Follow(root, {
      open: (card, from) => on.open(card.record, from),
      cancel: (card) => this.cancel(card.record.id),
    });
    this.feed = new Feed({ event: (event) => this.#take(event), resync: () => this.#load() });
    this.#load();
    setInterval(() => this.#tick(), POLL_MS);
  }

  /** A render that this page has just asked for; its preview stands in until the server knows more. */
  add(record, previewBlob) {
    const card = this.#card(record);
    card.preview(URL.createObjectURL(previewBlob));
    this.follow.watch(card);
    this.#summary();
  }

  async cancel(id) {
    try {
      this.#merge(await cancelRender(id));
    } catch (error) {
      this.#cards.get(id)?.complain(error.message);
    }
  }

  async #load(next = null) {
    let page;
    try {
      page = await getHistory(next ?? undefined);
    } catch {
      this.#soon();
      return;
    }
    for (const record of page.renders) this.#card(record);
    if (next !== null || !this.#loaded) this.#next = page.next;
    this.#loaded = true;
    this.older.hidden = this.#next === null;
    this.#summary();
  }

  #card(record) {
    let card = this.#cards.get(record.id);
    if (!card) {
      card = new Card(record, {
        open: () => this.on.open(card.record, card.open),
        cancel: () => this.cancel(record.id),
        reuse: () => this.on.reuse(card.record.recipe),
        refetch: () => this.#fetch(record.id),
        changed: (changed) => this.follow.show(changed),
      });
      this.#cards.set(record.id, card);
      this.#insert(card);
    } else card.update(record);
    return card;
  }

  // Newest first; a card never moves once it stands.
  #insert(card) {
    const after = [...this.#cards.values()].filter((other) => other !== card && other.created < card.created);
    const next = after.reduce((best, other) => (best === null || other.created > best.created ? other : best), null);
    this.list.insertBefore(card.element, next?.element ?? null);
  }

  #merge(record) {
    if (record?.id && this.#cards.has(record.id)) this.#cards.get(record.id).update(record);
    this.#summary();
  }

  #take(event) {
    const card = this.#cards.get(event.id);
    if (!card) return this.#fetch(event.id);
    if (event.type === "glimpse") return card.glimpse(event);
    card.event(event);
    if (ENDED.has(event.state)) this.#fetch(event.id);
    if (event.type === "state") this.#soon(); // the places of those behind it
    this.#summary();
  }

  async #fetch(id) {
    try {
      this.#card(await getRender(id));
      this.#summary();
    } catch {
      this.#soon();
    }
  }

  #soon() {
    clearTimeout(this.#late);
    this.#late = setTimeout(() => this.#load(), LATE_MS);
  }

  #active() {
    return [...this.#cards.values()].filter((card) => !card.ended);
  }

  #tick() {
    const active = this.#active();
    if (active.length === 0) return;
    if (!this.feed.up && !document.hidden) this.#load();
    this.#askForWorker(active);
    this.#summary();
  }

  // A queued render may be quiet because others are before it, or because nobody is there.
  async #askForWorker(active) {
    if (!active.some((card) => card.queued && card.quiet)) this.#ready = true;
    else if (performance.now() - this.#askedAt > READY_MS) {
      this.#askedAt = performance.now();
      this.#ready = (await awaited()) === "";
      this.#summary();
    }
  }

  #summary() {
    const active = this.#active();
    const stalled = active.filter((card) => this.feed.up && card.quiet && !(card.queued && this.#ready));
    const timed = this.feed.up && stalled.length === 0;
    for (const card of active) card.wait({ stalled: stalled.includes(card), timed });
    this.none.hidden = this.#cards.size > 0;
    const rendering = active.filter((card) => !card.queued && !stalled.includes(card)).length;
    const left = timed ? Math.max(0, ...active.map((card) => card.left)) : 0;
    say(this.queue, queueOf(rendering, active.length - rendering) + (left > 0 ? ` · ~${seconds(left)}` : ""));
  }
}

const queueOf = (rendering, waiting) =>
  [rendering && `${rendering} rendering`, waiting && `${waiting} waiting`].filter(Boolean).join(", ");
