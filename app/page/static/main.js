// Puts the page together: settings → live socket → stage → accept → renders.

import { Accept } from "./accept.js";
import { getModels, getStyles } from "./api.js";
import { Live } from "./live.js";
import { More } from "./more.js";
import { Patience } from "./patience.js";
import { acceptDrops, recipeInPng } from "./png.js";
import { PromptBox } from "./prompt.js";
import { Renders } from "./renders.js";
import { liveRequest, settingsOf } from "./request.js";
import { Said } from "./said.js";
import { SeedBox } from "./seed.js";
import { Stage } from "./stage.js";
import { Store } from "./store.js";
import { themeToggle } from "./theme.js";
import { SizePicker, StylePicker } from "./tools.js";
import { Variations } from "./variations.js";
import { Viewer } from "./viewer.js";

const LIVE_FIELDS = ["prompt", "negative", "seed", "width", "height", "styles", "previewSteps"];

/** @param element holds page.html; @param boot {models, styles} as the API gives them */
export async function start(element, boot) {
  const root = element.querySelector("#firstlight");
  if (root.dataset.ready === "true") return;
  const models = boot?.models?.preview ? boot.models : await getModels();
  const { buckets, limits } = models.final; // sizes of the finished picture
  const store = new Store();
  const said = new Said(root, store); // the first to hear of a change: others may have more to say of it
  themeToggle(root, store);

  new SizePicker(root, store, buckets);
  const styles = new StylePicker(root, store, limits);
  const names = new Map();
  if (boot?.styles?.length) fillStyles(styles, names, boot.styles);
  const prompt = new PromptBox(root, store, limits.prompt_characters);
  const seeds = new SeedBox(root, store);
  const variations = new Variations(root, store, seeds);
  const reuse = (recipe) => store.set(settingsOf(recipe, buckets, styles.ids));
  const more = new More(root, store, models, (file) => openRecipe(file, reuse, said));

  const { live, stage, accept } = livePane(root, store, { prompt, more, seeds, said });
  const viewer = new Viewer(root, { reuse }, (id) => names.get(id) ?? id);
  const renders = new Renders(root, { open: (record, from) => viewer.open(record, from), reuse });
  accept.accepted = (accepted) => renders.add(recordOf(accepted, models.final), accepted.shown.blob);

  acceptDrops(root, (file) => openRecipe(file, reuse, said));
  keys(root, { accept, seeds, variations });
  keepStylesFresh(styles, names);
  stage.shape(store.get().width, store.get().height);
  live.want(liveRequest(store.get()));
  root.dataset.ready = "true";
  if (matchMedia("(hover: hover)").matches) prompt.box.focus();
}

function livePane(root, store, { prompt, more, seeds, said }) {
  const stage = new Stage(root, (text) => prompt.write(text));
  const pane = { stage };
  const patience = new Patience(stage);
  const refresh = () => pane.accept?.refresh();
  pane.live = new Live({
    frame: (frame) => stage.show(frame),
    trouble: ({ kind, error, rev }) => {
      stage.notice(kind, error, rev);
      if (kind === "unavailable") pane.accept?.giveUp(error.message);
      refresh();
    },
    behind: (is) => {
      stage.behind(is);
      patience.behind(is);
      refresh();
    },
    link: (up) => patience.link(up),
  });
  const want = () => {
    const request = liveRequest(store.get());
    if (request === null) stage.empty(pane.live.rev + 1); // first, so that no waiting accept takes the old picture
    pane.live.want(request);
    refresh();
  };
  store.onChange((_state, changed) => {
    if (LIVE_FIELDS.some((field) => changed.has(field))) want();
    if (changed.has("width") || changed.has("height")) refresh();
  });
  pane.accept = new Accept(root, { store, live: pane.live, stage, more, seeds, said, renew: want, accepted: () => {} });
  return pane;
}

function keys(root, { accept, seeds, variations }) {
  const alt = { KeyS: () => seeds.shuffle(), KeyZ: () => seeds.back(), KeyV: () => variations.run() };
  document.addEventListener("keydown", (event) => {
    if (root.querySelector("dialog[open]") || event.isComposing) return;
    const command = event.ctrlKey || event.metaKey;
    const act = command && event.key === "Enter" ? () => accept.press() : event.altKey && !command ? alt[event.code] : null;
    if (!act) return;
    event.preventDefault();
    if (!event.repeat) act();  // a key held down asks once
  });
}

function fillStyles(picker, names, styles) {
  for (const { id, name } of styles) names.set(id, name || id);
  picker.fill(styles);
}

// Styles can be added while the page is open: looked up at the start and when somebody comes back to the tab.
function keepStylesFresh(picker, names) {
  let last = "";
  const look = async () => {
    if (document.hidden) return;
    const answer = await getStyles().catch(() => null);
    const text = JSON.stringify(answer?.styles);
    if (answer === null || text === last) return;
    last = text;
    fillStyles(picker, names, answer.styles);
  };
  document.addEventListener("visibilitychange", look);
  look();
}

async function openRecipe(file, reuse, said) {
  const recipe = recipeInPng(new Uint8Array(await file.arrayBuffer()));
  if (recipe) reuse(recipe);
  said.tell(recipe ? `Recipe of ${file.name} restored.` : `${file.name} carries no Firstlight recipe.`, recipe === null);
}

// What is known of a render before the server has been asked for its record.
function recordOf({ answer, shown, request }, final) {
  const { preview_id: _, handoff, n: _count, ...finals } = request;
  const recipe = {
    negative_prompt: "",
    guidance_scale: final.defaults.guidance_scale,
    sampler: final.defaults.sampler,
    model_id: final.id,
    model_version: final.version,
    ...shown.request,
    steps: final.defaults.steps, // the request's own are the preview's
    seed: shown.seed,
    ...finals,
    handoff,
  };
  return {
    created_s: Date.now() / 1000,
    progress: { step: 0, steps: recipe.steps },
    images: [],
    recipe,
    handoff: { mode: handoff, similarity: null },
    ...answer,
  };
}
