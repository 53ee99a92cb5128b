// What a person has set, kept over reloads; everyone who shows a part of it listens here.

const KEY = "firstlight.settings";

export const MAX_SEED = Number.MAX_SAFE_INTEGER; // 2^53 − 1

/** A uniform seed in 0…2^53−1. */
export function randomSeed() {
  const [high, low] = crypto.getRandomValues(new Uint32Array(2));
  return (high & 0x1fffff) * 2 ** 32 + low;
}

/** The seed that a text writes, or null when it is not a whole number in 0…2^53−1. */
export function parseSeed(text) {
  const trimmed = text.trim();
  if (!/^\d{1,40}$/.test(trimmed)) return null;
  const exact = BigInt(trimmed);
  return exact <= BigInt(MAX_SEED) ? Number(exact) : null;
}

const EMPTY = {
  prompt: "",
  negative: "",
  seed: 0,
  locked: false,
  width: 0,
  height: 0,
  styles: [], // [{id, weight}]
  previewSteps: null, // null: as the model's default
  handoff: "match",
  steps: null,
  guidance: null,
  sampler: "",
  count: 1,
  theme: "auto",
};

export class Store {
  #state;
  #listeners = [];

  constructor(defaults) {
    this.#state = { ...EMPTY, seed: randomSeed(), ...defaults, ...Store.#kept() };
  }

  get() {
    return this.#state;
  }

  /** Changes some fields; listeners are told which ones really changed. */
  set(patch) {
    const changed = Object.keys(patch).filter((key) => !same(patch[key], this.#state[key]));
    if (changed.length === 0) return;
    this.#state = { ...this.#state, ...patch };
    this.#keep();
    for (const listener of this.#listeners) listener(this.#state, new Set(changed));
  }

  onChange(listener) {
    this.#listeners.push(listener);
  }

  // This tab's own settings first; a new tab begins with the last ones of any tab.
  static #kept() {
    for (const storage of storages()) {
      try {
        const kept = JSON.parse(storage.getItem(KEY) ?? "null");
        if (kept) return sound(kept);
      } catch {
        continue; // broken or foreign: as if nothing was kept
      }
    }
    return {};
  }

  #keep() {
    const text = JSON.stringify(this.#state);
    for (const storage of storages()) {
      try {
        storage.setItem(KEY, text);
      } catch {
        continue; // full: the page works, it only forgets
      }
    }
  }
}

function storages() {
  const found = [];
  for (const name of ["sessionStorage", "localStorage"]) {
    try {
      found.push(window[name]);
    } catch {
      continue; // forbidden by the browser's settings
    }
  }
  return found;
}

const same = (a, b) => a === b || JSON.stringify(a) === JSON.stringify(b);

/** Only known fields of the right kind. */
function sound(kept) {
  const fields = {};
  for (const [key, example] of Object.entries(EMPTY)) {
    const value = kept[key];
    const kind = example === null ? "number" : typeof example;
    if (Array.isArray(example) ? Array.isArray(value) : typeof value === kind) fields[key] = value;
  }
  if ("seed" in fields && !(Number.isSafeInteger(fields.seed) && fields.seed >= 0)) delete fields.seed;
  if (fields.styles) fields.styles = fields.styles.filter((s) => typeof s?.id === "string" && typeof s?.weight === "number");
  return fields;
}
