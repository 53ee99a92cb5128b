// The row under the prompt: styles with their weights, and the shape of the picture.

import { h, icon } from "./dom.js";

const CROSS = "M6 6l8 8M14 6l-8 8";

export class SizePicker {
  constructor(root, store, buckets) {
    this.box = root.querySelector("#fl-sizes");
    this.store = store;
    const { width, height } = store.get();
    if (!buckets.some(([w, h_]) => w === width && h_ === height)) store.set({ width: buckets[0][0], height: buckets[0][1] });
    for (const bucket of buckets) this.box.append(this.#choice(bucket));
    store.onChange((state, changed) => (changed.has("width") || changed.has("height")) && this.#show(state));
    this.#show(store.get());
  }

  #choice([width, height]) {
    const name = `${shapeName(width, height)}, ${width} × ${height}`;
    const side = 18 / Math.max(width, height);
    const input = h("input", {
      type: "radio",
      name: "fl-size",
      value: `${width}x${height}`,
      "aria-label": name,
      onchange: () => this.store.set({ width, height }),
    });
    const shape = h("span", { class: "fl-shape", style: `width:${width * side}px;height:${height * side}px` });
    return h("label", { class: "fl-size", title: name }, input, shape);
  }

  #show({ width, height }) {
    for (const input of this.box.querySelectorAll("input")) input.checked = input.value === `${width}x${height}`;
  }
}

function shapeName(width, height) {
  const ratio = width / height;
  if (Math.abs(ratio - 1) < 0.05) return "square";
  if (ratio > 1) return ratio > 1.38 ? "wide" : "landscape";
  return ratio < 1 / 1.38 ? "tall" : "portrait";
}

export class StylePicker {
  #chips = new Map();

  constructor(root, store, limits) {
    this.box = root.querySelector("#fl-styles");
    this.store = store;
    this.limits = limits;
    this.none = h("button", { type: "button", class: "fl-chip-name", onclick: () => store.set({ styles: [] }) }, "none");
    store.onChange((state, changed) => changed.has("styles") && this.#show());
  }

  get ids() {
    return [...this.#chips.keys()];
  }

  /** Lays the chips out anew; styles that are gone are dropped from the choice. */
  fill(styles) {
    this.#chips = new Map(styles.map((style) => [style.id, this.#chip(style)]));
    this.box.replaceChildren(h("div", { class: "fl-chip" }, this.none), ...[...this.#chips.values()].map((chip) => chip.element));
    this.store.set({ styles: this.store.get().styles.filter(({ id }) => this.#chips.has(id)) });
    this.#show();
  }

  #chip(style) {
    const name = style.name || style.id;
    const toggle = h(
      "button",
      { type: "button", class: "fl-chip-name", title: style.description ?? name, onclick: () => this.#toggle(style) },
      name,
    );
    const slider = h("input", {
      type: "range",
      min: 0,
      max: this.limits.style_weight[1],
      step: 0.05,
      "aria-label": `${name} weight`,
      oninput: () => this.#weigh(style.id, Number(slider.value)),
    });
    const output = h("output", { class: "fl-chip-weight" });
    const remove = h(
      "button",
      { type: "button", class: "fl-chip-remove", "aria-label": `Remove ${name}`, onclick: () => this.#remove(style, toggle) },
      icon(CROSS),
    );
    const element = h("div", { class: "fl-chip", role: "group", "aria-label": `style ${name}`, "data-style": style.id }, toggle, slider, output, remove);
    return { element, toggle, slider, output, remove };
  }

  #toggle(style) {
    const { styles } = this.store.get();
    if (styles.some(({ id }) => id === style.id)) return this.#remove(style);
    if (styles.length >= this.limits.styles) return;
    this.store.set({ styles: [...styles, { id: style.id, weight: style.weight ?? 1 }] });
    this.#chips.get(style.id).element.scrollIntoView({ block: "nearest", inline: "nearest" });
  }

  #remove(style, focusNext) {
    this.store.set({ styles: this.store.get().styles.filter(({ id }) => id !== style.id) });
    focusNext?.focus();
  }

  #weigh(id, weight) {
    this.store.set({ styles: this.store.get().styles.map((use) => (use.id === id ? { id, weight } : use)) });
  }

  #show() {
    const { styles } = this.store.get();
    const full = styles.length >= this.limits.styles;
    this.none.setAttribute("aria-pressed", String(styles.length === 0));
    for (const [id, chip] of this.#chips) {
      const use = styles.find((style) => style.id === id);
      chip.element.dataset.on = String(use !== undefined);
      chip.toggle.setAttribute("aria-pressed", String(use !== undefined));
      chip.toggle.disabled = full && use === undefined;
      for (const part of [chip.slider, chip.output, chip.remove]) part.hidden = use === undefined;
      if (use === undefined) continue;
      if (Number(chip.slider.value) !== use.weight) chip.slider.value = String(use.weight);
      chip.output.textContent = String(Number(use.weight.toFixed(2)));
    }
  }
}
