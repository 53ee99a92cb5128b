// Automatic, light or dark; the choice is kept with the other settings.

import { icon } from "./dom.js";

const THEMES = {
  auto: ["Colours: automatic", "M10 3a7 7 0 1 0 0 14zM10 3a7 7 0 0 1 0 14"],
  light: ["Colours: light", "M10 6.5a3.5 3.5 0 1 0 0 7a3.5 3.5 0 0 0 0-7zM10 2v1.500M10 16.500V18M2 10h1.500M16.5 10H18M4.3 4.300l1 1M14.7 14.700l1 1M4.3 15.700l1-1M14.7 5.300l1-1"],
  dark: ["Colours: dark", "M16 11.500A6.5 6.5 0 0 1 8.5 4A6.5 6.5 0 1 0 16 11.500z"],
};

export function themeToggle(root, store) {
  const button = root.querySelector("#fl-theme");
  const names = Object.keys(THEMES);
  const show = () => {
    const { theme } = store.get();
    const [label, path] = THEMES[theme] ?? THEMES.auto;
    document.documentElement.dataset.flTheme = theme;
    button.replaceChildren(icon(path));
    button.setAttribute("aria-label", label);
    button.title = label;
  };
  button.addEventListener("click", () => {
    store.set({ theme: names[(names.indexOf(store.get().theme) + 1) % names.length] });
  });
  store.onChange((_state, changed) => changed.has("theme") && show());
  show();
}
