// Where the picture forms: each new picture fades in over the one before; the empty invitation, the withheld or error notice.

import { h, say, shorten } from "./dom.js";

const FADE_MS = 90;
const SPOKEN_AFTER_MS = 700;

export const EXAMPLES = [
  "a penguin in the snow",
  "a rocket in space",
  "a castle at sunset",
  "a frog on a pink background",
];

const TITLES = {
  blocked: "This picture is withheld",
  unavailable: "No picture yet",
  offline: "No connection",
  invalid: "This cannot be drawn as it stands",
};

export class Stage {
  shown = null; // {rev, preview_id, seed, width, height, request, blob}
  #root;
  #swappedAt = -Infinity;
  #loading = 0;
  #speak = null;
  #still = matchMedia("(prefers-reduced-motion: reduce)");

  /** @param root the page's element; @param begin called with an example that was picked */
  constructor(root, begin) {
    this.#root = root;
    this.stage = root.querySelector("#fl-stage");
    this.frame = root.querySelector("#fl-frame");
    this.facts = root.querySelector("#fl-facts");
    const examples = root.querySelector("#fl-examples");
    for (const text of EXAMPLES) {
      examples.append(h("li", {}, h("button", { type: "button", class: "fl-example", onclick: () => begin(text) }, text)));
    }
  }

  /** Shows a frame when its picture is decoded, unless a newer one has come meanwhile. */
  async show({ header, bytes, request }) {
    const turn = ++this.#loading;
    const type = header.format === "png" ? "image/png" : `image/${header.format ?? "jpeg"}`;
    const blob = new Blob([bytes], { type });
    const url = URL.createObjectURL(blob);
    const picture = h("img", { class: "fl-layer", src: url, alt: `preview of ${request.prompt}`, draggable: "false" });
    await picture.decode().catch(() => null);
    if (turn !== this.#loading || picture.naturalWidth === 0) {
      URL.revokeObjectURL(url);
      return;
    }
    const width = header.width ?? picture.naturalWidth;
    const height = header.height ?? picture.naturalHeight;
    this.shape(width, height);
    this.#bringForward(picture);
    this.#ambient(picture);
    this.shown = { ...header, width, height, request, blob };
    this.#mark("picture", header.rev, request.prompt);
    this.stage.dataset.previewId = header.preview_id;
    this.stage.dataset.seed = header.seed;
    say(this.facts, factsOf(header, width, height));
    this.#announce(`preview of ${request.prompt}`);
  }

  /** A notice stands where the picture would be. */
  notice(kind, error, rev) {
    this.#forget();
    this.#mark("notice", rev, "");
    this.stage.dataset.notice = kind;
    const box = this.#root.querySelector("#fl-notice");
    say(this.#root.querySelector("#fl-notice-title"), TITLES[kind] ?? "The preview did not work");
    say(this.#root.querySelector("#fl-notice-text"), error.message ?? "");
    box.hidden = false;
  }

  empty(rev) {
    this.#forget();
    this.#mark("empty", rev, "");
    clearTimeout(this.#speak);
    say(this.#root.querySelector("#fl-live"), "");
  }

  behind(is) {
    this.stage.dataset.behind = String(is);
    this.stage.setAttribute("aria-busy", String(is));
  }

  /** A word over the picture about what is being waited for; "" takes it away. */
  word(text) {
    const note = this.#root.querySelector("#fl-word");
    say(note, text);
    note.hidden = text === "";
  }

  /** The frame takes the shape that is asked for before the first picture of it arrives. */
  shape(width, height) {
    this.frame.style.setProperty("--ratio", String(width / height));
  }

  #bringForward(picture) {
    const before = [...this.frame.children];
    const quick = performance.now() - this.#swappedAt < FADE_MS + 30;
    this.#swappedAt = performance.now();
    this.frame.append(picture);
    if (quick || this.#still.matches) return drop(before);
    const fade = picture.animate([{ opacity: 0 }, { opacity: 1 }], { duration: FADE_MS, easing: "linear" });
    fade.onfinish = () => drop(before);
  }

  #ambient(picture) {
    const canvas = this.#root.querySelector("#fl-ambient");
    const context = canvas.getContext("2d");
    context.filter = "blur(2px)";
    context.drawImage(picture, -2, -2, canvas.width + 4, canvas.height + 4);
  }

  #mark(state, rev, prompt) {
    this.stage.dataset.state = state;
    this.stage.dataset.rev = rev;
    this.stage.dataset.shownPrompt = prompt;
    this.#root.querySelector("#fl-empty").hidden = state !== "empty";
    if (state !== "notice") {
      this.#root.querySelector("#fl-notice").hidden = true;
      delete this.stage.dataset.notice;
    }
  }

  #forget() {
    this.#loading += 1;
    this.shown = null;
    drop([...this.frame.children]);
    delete this.stage.dataset.previewId;
    delete this.stage.dataset.seed;
    say(this.facts, "");
  }

  #announce(text) {
    clearTimeout(this.#speak);
    this.#speak = setTimeout(() => say(this.#root.querySelector("#fl-live"), shorten(text, 160)), SPOKEN_AFTER_MS);
  }
}

function drop(pictures) {
  for (const picture of pictures) {
    picture.remove();
    URL.revokeObjectURL(picture.src);
  }
}

function factsOf(header, width, height) {
  const facts = [`seed ${header.seed}`, `${width} × ${height}`];
  if (header.steps) facts.push(header.steps === 1 ? "1 step" : `${header.steps} steps`);
  if (header.tokens_unread) facts.push(`too long: the last ${header.tokens_unread} tokens are not read`);
  return facts.join("  ·  ");
}
