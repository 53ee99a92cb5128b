// Small helpers over the DOM. No framework: elements, text, attributes.

/** Makes an element. Keys beginning with "on" are listeners, `class` and `data-*` are attributes, the rest too. */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else element.setAttribute(key, value === true ? "" : String(value));
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

const SVG = "http://www.w3.org/2000/svg";

/** A 20×20 line icon from one path. */
export function icon(path) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 20 20");
  svg.setAttribute("aria-hidden", "true");
  const line = document.createElementNS(SVG, "path");
  line.setAttribute("d", path);
  svg.append(line);
  return svg;
}

/** Sets text only when it differs, so that live regions and selections are left alone. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function clamp(value, low, high) {
  return Math.min(high, Math.max(low, value));
}

export function shorten(text, characters) {
  const all = [...text.trim()];
  return all.length <= characters ? all.join("") : all.slice(0, characters - 1).join("") + "…";
}

export function seconds(value) {
  if (value < 10) return `${value.toFixed(1)} s`;
  return value < 90 ? `${Math.round(value)} s` : `${Math.round(value / 60)} min`;
}
