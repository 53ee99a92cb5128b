// Accepting the picture that is shown; when it is behind the text, the newest one is waited for first.

import { postRender } from "./api.js";
import { h, say, seconds, shorten } from "./dom.js";
import { renderRequest } from "./request.js";

const HANDOFFS = [
  ["match", "Keeps this composition, painted in full."],
  ["balanced", "Keeps the outline, free in the detail."],
  ["fresh", "Same words and seed, composed anew."],
];

export class Accept {
  #waiting = false; // pressed while the picture was behind the text
  #posting = false;
  #renewed = false; // one silent retry when the server has forgotten the preview

  /** @param parts {store, live, stage, more, seeds, said, renew, accepted({answer, shown, request})} */
  constructor(root, parts) {
    Object.assign(this, parts);
    this.button = root.querySelector("#fl-accept");
    this.label = root.querySelector("#fl-accept-label");
    if (/Mac|iPhone|iPad/.test(navigator.platform)) root.querySelector("#fl-accept-key").textContent = "⌘ ↵";
    this.#handoffs(root.querySelector("#fl-handoff"));
    this.button.addEventListener("click", () => this.press());
    this.store.onChange(() => this.refresh());
    this.refresh();
  }

  press() {
    if (this.#posting || this.#waiting) return;
    const problem = this.more.problem() ?? this.seeds.problem();
    if (problem) return this.said.tell(problem, true);
    if (!this.live.behind) return this.stage.shown ? this.#post(this.stage.shown) : undefined;
    this.#waiting = true;
    this.live.flush();
    this.said.tell("Waiting for the newest picture, then accepting it.");
    this.refresh();
  }

  /** No picture comes for now, for this reason: whoever waits for one is told, and decides. */
  giveUp(reason) {
    if (!this.#waiting) return;
    this.#waiting = false;
    this.said.tell(`Not accepted: ${reason}`, true);
  }

  /** Called whenever the stage or the socket has moved on. */
  refresh() {
    const { shown } = this.stage;
    if (this.#waiting && !this.live.behind) {
      this.#waiting = false;
      if (shown) this.#post(shown);
      else this.said.tell("There is no picture to accept.", true);
    }
    this.button.disabled = !(shown || this.live.behind);
    this.button.setAttribute("aria-disabled", String(this.#posting || this.#waiting)); // keeps the focus, unlike disabled
    say(this.label, this.#waiting ? "Accepting…" : "Accept");
  }

  async #post(shown) {
    const request = renderRequest(this.store.get(), shown);
    this.#posting = true;
    this.refresh();
    try {
      const answer = await postRender(request);
      this.#renewed = false;
      this.said.tell(`Accepted: ${shorten(shown.request.prompt, 60)}`);
      this.accepted({ answer, shown, request });
    } catch (error) {
      this.#refused(error);
    } finally {
      this.#posting = false;
      this.refresh();
    }
  }

  #refused(error) {
    if (error.field === "preview_id" && !this.#renewed) {
      this.#renewed = true;
      this.#waiting = true;
      this.renew();
      return;
    }
    const again = error.body?.retry_after_s;
    this.said.tell(again ? `${error.message.replace(/[.!?]?$/, ".")} Try again in ${seconds(again)}.` : error.message, true);
    if (error.field) this.more.point(error.field);
  }

  #handoffs(box) {
    const hint = h("p", { class: "fl-handoff-hint", id: "fl-handoff-hint" });
    const inputs = HANDOFFS.map(([value, meaning]) =>
      h("input", {
        type: "radio",
        name: "fl-handoff",
        value,
        "aria-label": `${value}: ${meaning}`,
        onchange: () => this.store.set({ handoff: value }),
      }),
    );
    const choices = inputs.map((input, index) => h("label", { title: HANDOFFS[index][1] }, input, h("span", {}, input.value)));
    box.append(h("div", { class: "fl-segments" }, ...choices), hint);
    const show = () => {
      const { handoff } = this.store.get();
      for (const input of inputs) input.checked = input.value === handoff;
      say(hint, HANDOFFS.find(([value]) => value === handoff)?.[1] ?? "");
    };
    this.store.onChange(show);
    show();
  }
}
