// A finished render in full: compared with its preview, its recipe, its times, and what to do next.

import { h, icon, seconds } from "./dom.js";
import { likeness, sayLikeness } from "./likeness.js";
import { SAMPLERS } from "./more.js";

const CROSS = "M5 5l10 10M15 5L5 15";
const TIMES = {
  queue: "waiting",
  encode: "reading the text",
  denoise: "painting",
  decode: "developing",
  safety: "checking",
  publish: "saving",
  total: "altogether",
  gpu: "computing time",
};

export class Viewer {
  #return = null;

  /** @param on {reuse(recipe)} */
  constructor(root, on, styleName) {
    this.dialog = root.querySelector("#fl-viewer");
    this.on = on;
    this.styleName = styleName;
    this.dialog.addEventListener("close", () => this.#return?.focus());
    this.dialog.addEventListener("click", (event) => event.target === this.dialog && this.dialog.close());
  }

  open(record, from) {
    this.#return = from;
    this.record = record;
    this.dialog.replaceChildren(this.#content());
    this.#pick(0);
    this.dialog.showModal();
    this.slider?.focus();
  }

  #content() {
    const { recipe } = this.record;
    const close = h("button", { type: "button", class: "fl-icon fl-viewer-close", "aria-label": "Close", title: "Close (Esc)", onclick: () => this.dialog.close() }, icon(CROSS));
    this.pictures = h("div", { class: "fl-compare", style: `--ratio:${recipe.width / recipe.height}` });
    this.download = h("a", { class: "fl-primary", role: "button" }, "Download");
    const again = h("button", { type: "button", class: "fl-quiet", onclick: () => this.#reuse() }, "Make this the prompt again");
    this.facts = h("dl", { class: "fl-recipe" });
    const side = h(
      "div",
      { class: "fl-viewer-side" },
      h("h2", { id: "fl-viewer-title", class: "fl-viewer-prompt" }, recipe.prompt),
      this.#thumbnails(),
      this.facts,
      h("div", { class: "fl-viewer-do" }, this.download, again),
    );
    return h("div", { class: "fl-viewer-body" }, close, h("div", { class: "fl-viewer-see" }, this.pictures, this.#slider()), side);
  }

  #slider() {
    if (!this.record.preview_url) {
      this.slider = null;
      return null;
    }
    this.slider = h("input", { type: "range", class: "fl-compare-slider", min: 0, max: 100, step: 1, value: 50, "aria-label": "How much of the preview is uncovered" });
    this.slider.addEventListener("input", () => this.pictures.style.setProperty("--cut", `${this.slider.value}%`));
    this.pictures.addEventListener("pointerdown", (event) => this.#drag(event));
    return h("div", { class: "fl-compare-row" }, h("span", {}, "preview"), this.slider, h("span", {}, "final"));
  }

  #drag(event) {
    const move = ({ clientX }) => {
      const box = this.pictures.getBoundingClientRect();
      this.slider.value = String(((clientX - box.left) / box.width) * 100);
      this.slider.dispatchEvent(new Event("input"));
    };
    event.preventDefault();
    this.slider.focus();
    this.pictures.setPointerCapture(event.pointerId);
    this.pictures.onpointermove = move;
    this.pictures.onpointerup = () => (this.pictures.onpointermove = null);
    move(event);
  }

  #thumbnails() {
    const { images } = this.record;
    if (images.length < 2) return null;
    this.thumbs = images.map((image, index) =>
      h(
        "button",
        { type: "button", class: "fl-slot", "aria-label": `image ${index + 1}, seed ${image.seed}`, onclick: () => this.#pick(index) },
        h("img", { src: new URL(image.url, document.baseURI).href, alt: "" }),
      ),
    );
    return h("div", { class: "fl-viewer-thumbs" }, ...this.thumbs);
  }

  #pick(index) {
    const { images, recipe, preview_url } = this.record;
    const image = images[index];
    this.picked = index;
    this.#tell();
    const url = new URL(image.url, document.baseURI).href;
    const final = h("img", { src: url, alt: `${recipe.prompt}, final`, draggable: "false" });
    // The preview is of the first picture; the others have seeds of their own.
    const compared = preview_url && index === 0;
    const preview = compared && h("img", { class: "fl-compare-preview", src: new URL(preview_url, document.baseURI).href, alt: "its preview", draggable: "false" });
    const line = compared && h("span", { class: "fl-compare-line", "aria-hidden": "true" });
    this.pictures.replaceChildren(...[final, preview, line].filter(Boolean));
    this.pictures.dataset.compared = String(Boolean(compared));
    if (this.slider) this.slider.disabled = !compared;
    // Where pictures lie on another host, browsers heed what that says of the file, not the attribute.
    this.download.href = new URL(image.download_url, document.baseURI).href;
    this.download.download = `firstlight-${image.seed}.png`;
    if (images.length > 1) this.thumbs.forEach((thumb, at) => thumb.setAttribute("aria-pressed", String(at === index)));
  }

  /** What is known of the picture that is picked. */
  #tell() {
    this.facts.replaceChildren(...this.#facts().flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
    const similarity = this.record.handoff?.similarity;
    if (this.picked > 0 || typeof similarity !== "number") return; // only the first is compared with the preview
    const words = h("span", { role: "note" });
    sayLikeness(words, likeness(similarity), true);
    this.facts.querySelector("dd").append(", ", words);
  }

  #facts() {
    const { recipe, handoff, images, timings_ms: times = {} } = this.record;
    const styles = recipe.styles.map(({ id, weight }) => `${this.styleName(id)} ${Number(weight.toFixed(2))}`).join(", ");
    return [
      ["Hand-off", handoff?.mode ?? recipe.handoff],
      ["Seed", String(images[this.picked].seed)],
      ["Size", `${recipe.width} × ${recipe.height}`],
      ["Styles", styles || "none"],
      recipe.negative_prompt && ["Negative", recipe.negative_prompt],
      ["Steps", `${recipe.steps}, guidance ${recipe.guidance_scale}`],
      ["Sampler", SAMPLERS.find(([id]) => id === recipe.sampler)?.[1] ?? recipe.sampler],
      ["Model", `${recipe.model_id} ${recipe.model_version}`],
      ["Times", timesOf(times) || "not kept"],
    ].filter(Boolean);
  }

  #reuse() {
    this.#return = null; // the focus goes to the prompt
    this.dialog.close();
    this.on.reuse({ ...this.record.recipe, seed: this.record.images[this.picked].seed });
  }
}

function timesOf(times) {
  return Object.entries(TIMES)
    .filter(([name]) => typeof times[name] === "number")
    .map(([name, word]) => `${word}\u00a0${shown(times[name])}`)
    .join(", ");
}

const shown = (ms) => (ms < 1000 ? `${Math.round(ms)} ms` : seconds(ms / 1000)).replace(" ", "\u00a0"); // no unit on a line of its own
