// Reads the recipe that our PNGs carry (iTXt, keyword "firstlight"), in the browser.

const SIGNATURE = [137, 80, 78, 71, 13, 10, 26, 10];

/** The recipe in a PNG; null when the bytes are no PNG or carry none. */
export function recipeInPng(bytes) {
  if (!SIGNATURE.every((value, at) => bytes[at] === value)) return null;
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  for (let at = 8; at + 12 <= bytes.length; ) {
    const length = view.getUint32(at);
    const kind = String.fromCharCode(...bytes.subarray(at + 4, at + 8));
    if (kind === "IEND" || at + 12 + length > bytes.length) return null;
    if (kind === "iTXt") {
      const recipe = recipeInText(bytes.subarray(at + 8, at + 8 + length));
      if (recipe) return recipe;
    }
    at += 12 + length;
  }
  return null;
}

// keyword NUL, compressed?, method, language NUL, translated keyword NUL, text
function recipeInText(chunk) {
  const keyEnd = chunk.indexOf(0);
  if (new TextDecoder("latin1").decode(chunk.subarray(0, keyEnd)) !== "firstlight" || chunk[keyEnd + 1] !== 0) return null;
  const languageEnd = chunk.indexOf(0, keyEnd + 3);
  const textStart = chunk.indexOf(0, languageEnd + 1) + 1;
  try {
    const recipe = JSON.parse(new TextDecoder().decode(chunk.subarray(textStart)));
    return typeof recipe?.prompt === "string" && Number.isSafeInteger(recipe.seed) ? recipe : null;
  } catch {
    return null;
  }
}

/** Lets a picture file be dropped anywhere on the page; text still drops into the box. */
export function acceptDrops(root, onFile) {
  const veil = root.querySelector("#fl-drop");
  const isFile = (event) => event.dataTransfer?.types.includes("Files");
  let depth = 0;
  const show = (change) => {
    depth = Math.max(0, depth + change);
    veil.dataset.on = String(depth > 0);
  };
  window.addEventListener("dragenter", (event) => isFile(event) && show(1));
  window.addEventListener("dragleave", (event) => isFile(event) && show(-1));
  window.addEventListener("dragover", (event) => isFile(event) && event.preventDefault());
  window.addEventListener("drop", (event) => {
    if (!isFile(event)) return;
    event.preventDefault();
    show(-depth);
    const [file] = event.dataTransfer.files;
    if (file) onFile(file);
  });
}
