// The line under Accept: what came of the last thing that somebody did. What went wrong is said until the next one.

import { say } from "./dom.js";

export class Said {
  constructor(root, store) {
    this.line = root.querySelector("#fl-said");
    const mended = () => this.line.classList.contains("fl-wrong") && this.tell("");
    store.onChange(mended);
    root.addEventListener("input", mended, true); // before who listens to the field, and may have more to say
  }

  tell(text, wrong = false) {
    say(this.line, text);
    this.line.classList.toggle("fl-wrong", wrong);
  }
}
