// How alike a finished picture and its preview are, in words.

import { say } from "./dom.js";

const MEANING = "How alike the finished picture and its preview are; 100 % is identical.";

/** Only what is identical is called 100 %; below 0 the two have nothing in common. */
export function likeness(similarity) {
  const percent = similarity >= 1 ? 100 : Math.min(99, Math.max(0, Math.round(similarity * 100)));
  return `${percent} % like its preview`;
}

/** Says a text, and what it means when it speaks of likeness. */
export function sayLikeness(element, text, explained) {
  say(element, text);
  element.title = explained ? MEANING : "";
  if (explained) element.setAttribute("aria-label", `${text}. ${MEANING}`);
  else element.removeAttribute("aria-label");
}
