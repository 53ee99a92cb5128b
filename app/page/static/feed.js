// One stream of events for all of the owner's renders.

import { apiUrl } from "./api.js";

const NAMED = ["message", "queued", "running", "step", "progress", "glimpse", "decoding", "checking", "state", "done", "rejected", "blocked", "cancelled", "failed"];
const HIDDEN_MS = 60_000; // a tab that nobody sees gives its connection back: browsers allow six a host
const RETRY_MS = 3_000;

export class Feed {
  #source = null;
  #hidden = null;

  /** @param on {event(event), resync()}: resync whenever the stream begins, also after a gap */
  constructor(on) {
    this.on = on;
    document.addEventListener("visibilitychange", () => this.#visibility());
    this.#open();
  }

  get up() {
    return this.#source?.readyState === EventSource.OPEN;
  }

  #open() {
    const source = new EventSource(apiUrl("events"), { withCredentials: true });
    this.#source = source;
    const take = ({ data }) => data && this.on.event(JSON.parse(data));
    for (const name of NAMED) source.addEventListener(name, take);
    source.onopen = () => this.on.resync(); // what happened before the stream began is in the history only
    source.onerror = () => {
      // The browser reconnects by itself unless the answer was an HTTP error.
      if (source.readyState === EventSource.CLOSED && this.#source === source) setTimeout(() => this.#source === source && this.#open(), RETRY_MS);
    };
  }

  #visibility() {
    clearTimeout(this.#hidden);
    if (document.hidden) {
      this.#hidden = setTimeout(() => {
        this.#source?.close();
        this.#source = null;
      }, HIDDEN_MS);
    } else if (this.#source === null) this.#open();
  }
}
