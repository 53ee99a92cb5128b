"""Fetch the icon packages and render every object in the drawing styles."""

import functools
import io
import json
import shutil
import subprocess
import tarfile
import unicodedata
from pathlib import Path

import resvg_py
from catalogue import object_labels
from PIL import Image
from styling import STYLE_OF, STYLES

WORK = Path(__file__).parent / "work"
ICON_PX = 192
PACKAGES = {
    "flat": "@iconify-json/fluent-emoji-flat@1.2.6",
    "noto": "@iconify-json/noto@1.2.9",
    "ink": "@iconify-json/fluent-emoji-high-contrast@1.2.6",
    "fxemoji": "@iconify-json/fxemoji@1.2.2",
    "names": "emojibase-data@17.0.0",
}


def fetch() -> None:
    """Unpack every package below work/npm/<key>; what is there already is kept."""
    for key, spec in PACKAGES.items():
        folder = WORK / "npm" / key
        if folder.is_dir():
            continue
        scratch = WORK / "npm" / f"{key}.part"
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)
        subprocess.run(["npm", "pack", "--silent", spec], cwd=scratch, check=True, stdout=subprocess.DEVNULL)
        with tarfile.open(next(scratch.glob("*.tgz"))) as archive:
            archive.extractall(scratch, filter="data")
        (scratch / "package").rename(folder)
        shutil.rmtree(scratch)


def _codepoints() -> dict[str, str]:
    entries = json.loads((WORK / "npm/names/en/data.json").read_text())
    by_label = {entry["label"]: entry["hexcode"].lower() for entry in entries}
    return {name: by_label[label] for name, label in object_labels().items()}


def _render(icon: dict[str, object], default: int) -> Image.Image:
    width, height = icon.get("width", default), icon.get("height", default)
    svg = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" color="#1c1c22">{icon["body"]}</svg>'
    png = resvg_py.svg_to_bytes(svg_string=svg, width=ICON_PX, height=ICON_PX)
    image = Image.open(io.BytesIO(bytes(png))).convert("RGBA")
    box = image.getchannel("A").getbbox()
    return image.crop(box) if box else image


def _keys(pack: str) -> dict[str, str]:
    """Map objects to the names of their icons; packs without a table of code points go by Unicode's names."""
    folder = WORK / "npm" / pack
    chars = json.loads((folder / "chars.json").read_text())
    if chars:
        bare = {name: code.replace("-fe0f", "") for name, code in _codepoints().items()}
        return {name: chars.get(code) or chars[f"{code}-fe0f"] for name, code in bare.items()}
    drawn = json.loads((folder / "icons.json").read_text())["icons"]
    found = {}
    for name, code in _codepoints().items():
        official = unicodedata.name(chr(int(code.split("-")[0], 16)), "")
        squeezed = ["".join(filter(str.isalnum, words.lower())) for words in (official, object_labels()[name], name)]
        found[name] = next((key for key in squeezed if key in drawn), "")
    return {name: key for name, key in found.items() if key}


@functools.cache
def icons(style: str) -> dict[str, Image.Image]:
    """Render one style: object name to a cropped RGBA picture. A pack may lack some objects.

    Raises: KeyError when a pack with a table of code points lacks an object.
    """
    folder = WORK / "npm" / STYLE_OF[style].pack
    pack = json.loads((folder / "icons.json").read_text())
    drawn: dict[str, Image.Image] = {}
    for name, key in _keys(STYLE_OF[style].pack).items():
        while key in pack.get("aliases", {}):
            key = pack["aliases"][key]["parent"]
        icon = _render(pack["icons"][key], pack.get("height", 32))
        cut = STYLE_OF[style].cut
        drawn[name] = cut(icon) if cut else icon
    return drawn


def contact_sheet(pictures: list[Image.Image], columns: int, path: Path) -> None:
    """Write equal-sized pictures as one JPEG grid."""
    width, height = pictures[0].size
    rows = -(-len(pictures) // columns)
    sheet = Image.new("RGB", (columns * width, rows * height), "white")
    for i, picture in enumerate(pictures):
        sheet.paste(picture, (i % columns * width, i // columns * height))
    sheet.save(path, quality=88)


def main() -> None:
    """Fetch the packages and check that every style draws every object."""
    fetch()
    for style in STYLES:
        drawn = icons(style)
        small = [
            Image.alpha_composite(Image.new("RGBA", (64, 64), "white"), i.resize((64, 64))).convert("RGB")
            for i in drawn.values()
        ]
        contact_sheet(small, 20, WORK / f"icons_{style}.jpg")
        print(f"{style}: {len(drawn)} objects")


if __name__ == "__main__":
    main()
