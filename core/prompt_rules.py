"""Rules that refuse a prompt before any compute is spent.

A rule needs words from each of its groups, so that "naked mole rat", "cocktail" and "shooting star" pass.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

from core.errors import BlockedPrompt
from core.prompt import parse_weights

_LOOKALIKES = str.maketrans("013457@$!", "oieastasi")
_WORD = re.compile(r"[^\W_]+")

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
    """Words without accents and case, also with look-alike digits read as letters and s p a c e d letters joined."""
    folded = unicodedata.normalize("NFKD", text.casefold())
    plain = "".join(c for c in folded if not unicodedata.combining(c) and unicodedata.category(c) != "Cf")
    spelled = re.sub(r"\b(?:\w[ .\-*]){2,}\w\b", lambda m: re.sub(r"[ .\-*]", "", m.group()), plain)
    return (
        frozenset(_WORD.findall(plain))
        | frozenset(_WORD.findall(spelled))
        | frozenset(_WORD.findall(plain.translate(_LOOKALIKES)))
    )


def check_prompt(prompt: str, field: str = "prompt") -> None:
    """Raises: BlockedPrompt with the rule's reason; the text itself is never repeated."""
    unweighted = "".join(segment.text for segment in parse_weights(prompt, field))
    words = words_of(_INNOCENT.sub(" ", prompt)) | words_of(_INNOCENT.sub(" ", unweighted))
    for rule in RULES:
        if all(group & words for group in rule.groups):
            raise BlockedPrompt(f"the {field} asks for {rule.reason}, which is not made here", field=field)
