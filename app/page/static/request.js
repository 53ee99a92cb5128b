// From what is set on the page to what the API takes, and back from a recipe.

/** What the live pane wants to see now; null when there is nothing to draw. */
export function liveRequest(state) {
  if (state.prompt.trim() === "") return null;
  const request = {
    prompt: state.prompt,
    seed: state.seed,
    width: state.width,
    height: state.height,
    styles: state.styles.map(({ id, weight }) => ({ id, weight })),
  };
  if (state.negative.trim() !== "") request.negative_prompt = state.negative.trim();
  if (state.previewSteps !== null) request.steps = state.previewSteps;
  return request;
}

/** The render of a preview that is shown: the server knows its recipe, this adds what acts on the final only. */
export function renderRequest(state, shown) {
  const request = { preview_id: shown.preview_id, handoff: state.handoff, negative_prompt: state.negative.trim() };
  if (state.steps !== null) request.steps = state.steps;
  if (state.guidance !== null) request.guidance_scale = state.guidance;
  if (state.sampler !== "") request.sampler = state.sampler;
  if (state.count !== 1) request.n = state.count;
  return request;
}

/** The settings that a recipe stands for; shapes and styles that are not here are left out. */
export function settingsOf(recipe, buckets, styleIds) {
  const known = buckets.some(([width, height]) => width === recipe.width && height === recipe.height);
  return {
    prompt: recipe.prompt,
    negative: recipe.negative_prompt ?? "",
    seed: recipe.seed,
    locked: true,
    ...(known ? { width: recipe.width, height: recipe.height } : {}),
    styles: (recipe.styles ?? []).filter(({ id }) => styleIds.includes(id)),
    ...(recipe.pool === "preview" ? shapingPreviews(recipe) : shapingFinals(recipe)),
  };
}

const shapingFinals = ({ handoff = "match", steps = null, guidance_scale: guidance = null, sampler = "" }) => ({ handoff, steps, guidance, sampler });

// A preview's steps, guidance and sampler are no render's, which keeps the usual ones.
const shapingPreviews = ({ steps: previewSteps = null }) => ({ ...shapingFinals({}), previewSteps });
