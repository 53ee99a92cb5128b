"""Rules that refuse a prompt before any compute is spent.

A rule needs words from each of its groups, so that "naked mole rat", "cocktail" and "shooting star" pass.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from itertools import accumulate, takewhile
from string import ascii_lowercase

from core.errors import BlockedPrompt
from core.prompt import parse_weights

_LOOKALIKE_DIGITS = str.maketrans("013457@$!", "oieastasi")
_LOOKALIKES = {
    "авсԁеєгһніјкӏмпорԛѕтухѵԝ": "abcdeerhhijklmnopqstyxvw",  # Cyrillic; "и" as "n" would block "роги"
    "АВСԀЕЄГҺНІЈКӀМПОРԚЅТУХѴԜ": "abcdeerhhijklmnopqstyxvw",
    "αβεγηικμνορςτυχω": "abeynikuvopctuxw",  # Greek
    "ΑΒΕΖΗΙΚΜΝΟΡΤΥΧ": "abezhikmnoptyx",
    "ᴀʙᴄᴅᴇꜰɢʜɪᴊᴋʟᴍɴᴏᴘʀꜱᴛᴜᴠᴡʏᴢ": "abcdefghijklmnoprstuvwyz",  # small capitals
    "ıɑɡøđłħŧØĐŁĦŦ": "iagodlhtodlht",
}
_ENCLOSED = (0x1F130, 0x1F150, 0x1F170, 0x1F1E6)  # squared, circled and flag letters, each a row from A to Z
_LOOKALIKE_LETTERS = {
    ord(c): latin for odd, plain in _LOOKALIKES.items() for c, latin in zip(odd, plain, strict=True)
} | {start + i: letter for start in _ENCLOSED for i, letter in enumerate(ascii_lowercase)}
_UNSEEN = "\u200b"
_WORD = re.compile(r"[^\W_]+")
_PARTED = re.compile(rf"[^\W_]+(?:{_UNSEEN}+[^\W_]+)+")
_SPELLED = re.compile(r"\b(?:\w[ .\-*]){2,}\w\b")

_SEXUAL = frozenset(
    """nude nudes nudity naked topless undressed nsfw porn porno pornographic pornography hentai erotic erotica
    sexual sexually sexy sex explicit fetish genitals genital penis vagina breasts nipples orgasm masturbating
    masturbation blowjob lingerie""".split()
)
_EXPLICIT = frozenset(
    """porn porno pornographic pornography hentai nsfw erotic erotica genitals genital penis vagina nipples orgasm
    masturbating masturbation blowjob nude nudes nudity topless""".split()
)
_MINOR = frozenset(
    """child children kid kids minor minors toddler toddlers infant baby babies schoolgirl schoolgirls schoolboy
    schoolboys underage preteen preteens teen teens teenage teenager teenagers loli lolita shota girl girls boy
    boys""".split()
)
_PERSON = frozenset(
    """man men woman women person people girl girls boy boys lady ladies guy couple actress actor celebrity model
    human humans body bodies she he her him""".split()
)
_GORE = frozenset(
    "gore gory dismembered dismemberment decapitated decapitation beheading beheaded mutilated mutilation".split()
)
_BARE = frozenset("naked undressed".split())
_INNOCENT = re.compile(r"\bnaked[ -](?:mole[ -]?rats?|eye|oats?|barley)\b", re.IGNORECASE)
_LONGEST = max(map(len, _SEXUAL | _EXPLICIT | _MINOR | _PERSON | _GORE | _BARE))


@dataclass(frozen=True, slots=True)
class Rule:
    """Refuses a text that holds a word of every group."""

    reason: str
    groups: tuple[frozenset[str], ...]


RULES = (
    Rule("sexual content with minors", (_SEXUAL, _MINOR)),
    Rule("explicit sexual content", (_EXPLICIT,)),
    Rule("nudity of people", (_BARE, _PERSON)),
    Rule("gore", (_GORE,)),
)


def words_of(text: str) -> frozenset[str]:
    """Words without accents and case; also as they look, with foreign letters and digits read as the Latin ones."""
    plain = unicodedata.normalize("NFKD", text)
    seen = _folded(plain.translate(_LOOKALIKE_LETTERS))
    looks = _words(seen) | _words(seen.translate(_LOOKALIKE_DIGITS))
    return _words(_folded(plain)) | frozenset(word for word in looks if len(word) > 2)  # "не" is not "he"


def _folded(text: str) -> str:
    """Without case and accents; one mark for every character that only formats."""
    folded = unicodedata.normalize("NFKD", text.casefold())
    kinds = ((c, unicodedata.category(c)) for c in folded)
    return "".join(_UNSEEN if kind == "Cf" else c for c, kind in kinds if kind not in ("Mn", "Me"))


def _words(text: str) -> frozenset[str]:
    """Words, s p a c e d letters joined; what is unseen may join as well as part."""
    spelled = _SPELLED.sub(lambda m: re.sub(r"[ .\-*]", "", m.group()), text.replace(_UNSEEN, ""))
    words = {*_WORD.findall(text), *_WORD.findall(spelled)}
    for run in _PARTED.findall(text):
        parts = _WORD.findall(run)
        for start in range(len(parts)):
            words.update(takewhile(lambda word: len(word) <= _LONGEST, accumulate(parts[start : start + _LONGEST])))
    return frozenset(words)


def check_prompt(prompt: str, field: str = "prompt") -> None:
    """Raises: BlockedPrompt with the rule's reason; the text itself is never repeated."""
    unweighted = "".join(segment.text for segment in parse_weights(prompt, field))
    words = frozenset[str]().union(*(words_of(_INNOCENT.sub(" ", text)) for text in {prompt, unweighted}))
    for rule in RULES:
        if all(group & words for group in rule.groups):
            raise BlockedPrompt(f"the {field} asks for {rule.reason}, which is not made here", field=field)
