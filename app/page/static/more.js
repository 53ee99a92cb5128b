// The folded panel: what acts on the preview's steps and on the final only.

import { h, say } from "./dom.js";

export const SAMPLERS = [
  ["euler", "Euler"],
  ["euler_a", "Euler ancestral"],
  ["dpmpp_2m", "DPM++ 2M"],
  ["ddim", "DDIM"],
  ["lcm", "LCM"],
];

export class More {
  #numbers = [];

  /** @param openRecipe called with a picture file whose recipe is wanted */
  constructor(root, store, models, openRecipe) {
    this.store = store;
    this.models = models;
    this.details = root.querySelector("#fl-more");
    const { preview, final } = models;
    root.querySelector("#fl-more-fields").append(
      this.#previewSteps(preview.limits.steps[1], preview.defaults.steps),
      this.#negative(),
      h(
        "div",
        { class: "fl-pair" },
        this.#number("steps", "Final steps", final.defaults.steps, 1, final.limits.steps[1], 1),
        this.#number("guidance", "Guidance", final.defaults.guidance_scale, 0, final.limits.guidance_scale[1], 0.5),
      ),
      this.#sampler(final.defaults.sampler),
      this.#count(final.limits.images[1]),
      this.#open(openRecipe),
    );
    store.onChange(() => this.#show());
    this.#show();
  }

  /** The first field that cannot be sent as it stands, as a sentence; null when all is well. */
  problem() {
    const wrong = this.#numbers.find(({ input }) => input.getAttribute("aria-invalid") === "true");
    return wrong ? wrong.rule : null;
  }

  /** Opens the panel and puts the focus on the field that the server named. */
  point(field) {
    const id = { negative_prompt: "fl-negative", steps: "fl-steps", guidance_scale: "fl-guidance", sampler: "fl-sampler" }[field];
    if (!id) return;
    this.details.open = true;
    this.details.querySelector(`#${id}`).focus();
  }

  #previewSteps(most, usual) {
    this.steps = h("input", { type: "range", id: "fl-preview-steps", min: 1, max: most, step: 1 });
    this.steps.addEventListener("input", () => {
      const value = Number(this.steps.value);
      this.store.set({ previewSteps: value === usual ? null : value });
    });
    this.stepsOut = h("output", { for: "fl-preview-steps" });
    this.usualSteps = usual;
    return field("fl-preview-steps", "Preview steps", h("div", { class: "fl-slide" }, this.steps, this.stepsOut));
  }

  #negative() {
    this.negative = h("textarea", { id: "fl-negative", rows: 2, spellcheck: "false", autocomplete: "off", "aria-describedby": "fl-negative-hint" });
    this.negative.addEventListener("input", () => this.store.set({ negative: this.negative.value }));
    this.hint = h("p", { class: "fl-hint", id: "fl-negative-hint" });
    return field("fl-negative", "Negative prompt", this.negative, this.hint);
  }

  #number(key, label, usual, low, high, step) {
    const id = `fl-${key}`;
    const input = h("input", { id, inputmode: step < 1 ? "decimal" : "numeric", placeholder: usual, autocomplete: "off", "aria-describedby": `${id}-hint` });
    const hint = h("p", { class: "fl-hint", id: `${id}-hint` });
    const whole = step === 1;
    const rule = `${label.toLowerCase()}: ${whole ? "a whole number " : ""}from ${low} to ${high}`;
    input.addEventListener("input", () => {
      const text = input.value.trim();
      const value = Number(text);
      const fine = text === "" || (/^\d+(\.\d+)?$/.test(text) && value >= low && value <= high && (!whole || Number.isInteger(value)));
      input.setAttribute("aria-invalid", String(!fine));
      say(hint, fine ? "" : rule);
      if (fine) this.store.set({ [key]: text === "" ? null : value });
    });
    this.#numbers.push({ key, input, hint, rule });
    return field(id, label, input, hint);
  }

  #sampler(usual) {
    const nameOfUsual = SAMPLERS.find(([id]) => id === usual)?.[1] ?? usual;
    this.sampler = h(
      "select",
      { id: "fl-sampler", onchange: () => this.store.set({ sampler: this.sampler.value }) },
      h("option", { value: "" }, `${nameOfUsual} (usual)`),
      ...SAMPLERS.filter(([id]) => id !== usual && this.models.final.samplers.includes(id)).map(([id, name]) => h("option", { value: id }, name)),
    );
    this.usualSampler = usual;
    return field("fl-sampler", "Sampler", this.sampler);
  }

  #count(most) {
    this.counts = Array.from({ length: most }, (_, index) =>
      h("input", { type: "radio", name: "fl-count", value: index + 1, onchange: () => this.store.set({ count: index + 1 }) }),
    );
    const choices = this.counts.map((input) => h("label", {}, input, h("span", {}, input.value)));
    return h("fieldset", { class: "fl-field fl-count" }, h("legend", {}, "Images"), h("div", { class: "fl-segments" }, ...choices));
  }

  #open(openRecipe) {
    const file = h("input", { type: "file", accept: "image/png", class: "fl-sr", tabindex: -1, "aria-hidden": "true" });
    file.addEventListener("change", () => {
      if (file.files[0]) openRecipe(file.files[0]);
      file.value = "";
    });
    const button = h("button", { type: "button", class: "fl-quiet", onclick: () => file.click() }, "Open a picture’s recipe…");
    return h("div", { class: "fl-field" }, button, file);
  }

  #show() {
    const state = this.store.get();
    const steps = state.previewSteps ?? this.usualSteps;
    this.steps.value = String(steps);
    this.stepsOut.textContent = String(steps);
    if (this.negative.value !== state.negative) this.negative.value = state.negative;
    for (const { key, input, hint } of this.#numbers) {
      const typed = input.value.trim();
      if (input.getAttribute("aria-invalid") === "true" && input === document.activeElement) continue;
      if ((typed === "" ? null : Number(typed)) === state[key]) continue;
      input.value = state[key] ?? "";
      input.setAttribute("aria-invalid", "false");
      say(hint, "");
    }
    this.sampler.value = state.sampler === this.usualSampler ? "" : state.sampler;
    for (const input of this.counts) input.checked = Number(input.value) === state.count;
    const guidance = state.guidance ?? this.models.final.defaults.guidance_scale;
    const reads = this.models.final.negative_prompts;
    const ignored = !reads || guidance <= 1;
    const said = guidance <= 1 ? "Ignored now: guidance is 1 or below." : "Acts on the final only; ignored at guidance 1 or below.";
    say(this.hint, reads ? said : "This model reads none: leave it empty, and say in the prompt what there shall be instead.");
    this.hint.classList.toggle("fl-wrong", ignored && state.negative.trim() !== "");
  }
}

function field(id, label, ...rest) {
  return h("div", { class: "fl-field" }, h("label", { for: id }, label), ...rest);
}
