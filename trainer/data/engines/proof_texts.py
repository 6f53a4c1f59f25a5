"""Texts on which an engine must prove itself (see ``proof.py``): a hard set, and a sample of the corpus."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from trainer.data.corpus import Corpus, iter_texts
from trainer.data.engines.base import utf8_bytes

HARD_SET_VERSION = 1  # Raise it with any change of the texts: it is part of a proof's cache key.

_LINE = "The quick brown fox doesn't jump over 13 lazy dogs, naïve façades or 日本語 and Ωmega; x_1 += y[i]**2 # ok\n"

HARD: dict[str, str] = {
    "empty": "",
    "one space": " ",
    "one letter": "a",
    "one newline": "\n",
    "spaces around": "  a  ",
    "runs of spaces": "a b  c   d    e     f      g\u2002\u2003h",
    "5,000 spaces": "a" + " " * 5000 + "b",
    "trailing spaces": "end   ",
    "spaces and newlines": " \n  \n   \n\n\n    x \n",
    "3,000 newlines": "\n" * 3000,
    "CRLF": "one\r\ntwo\r\n\r\nthree\r",
    "tabs": "\tdef f():\n\t\treturn 1\t\t\n\t",
    "every kind of white space": "".join(
        f"a{chr(point)}{chr(point)}b "
        for point in (9, 10, 11, 12, 13, 28, 29, 30, 31, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029)
    )
    + "c\u202fd\u205fe\u3000f\ufeffg\u200bh\u2060i\u180ej",
    "control characters": "".join(f"x{chr(point)}" for point in [*range(1, 32), *range(127, 160)]),
    "NUL": "a\x00b\x00\x00 \x00",
    "every ASCII character": "".join(map(chr, range(128))),
    "every Latin-1 character": "".join(map(chr, range(160, 256))),
    "contractions": "I'm you're he's we've they'll I'd can't I'M YOU'RE HE'S WE'VE THEY'LL I'D CAN'T 's 't're''ve x'd",
    "typographic apostrophes": "I’m you’re it’s we’ve ‘quoted’ “twice” ʼtis",
    "long s and Kelvin": "it'ſ Ye'ſ K\u212a k'\u212a 'LL ı İ",  # equal to s and k if case is ignored
    "numbers": "0 1 12 123 1234 12345 1234567890 3.14159 1e-10 0x1F 1,234,567 1.000,00 -5 +7 ½ ² ₃ Ⅷ ①",
    "other digits": "٠١٢٣٤٥٦٧٨٩ ०१२३४ ๑๒๓ 𝟘𝟙𝟚 ༣ 一二三",
    "a number of 2,000 digits": "7" * 2000,
    "punctuation": '!!! ??? ... --- ___ +++ === << >> {{}} [[]] (()) ;;; :: "" `` ~~ @@ ## $$ %% ^^ && ** // \\\\ ||',
    "punctuation and letters": "a.b,c;d:e!f?g-h_i/j\\k|l@m#n$o%p^q&r*s(t)u=v+w[x]y{z}",
    "code": 'for(i=0;i<10;++i){a[i]=b->c("%d\\n",*p);}\n    return x if y else None  # noqa\n',
    "mark-up": '<p class="x">a &amp; b</p><!-- c --><br/>\n<|im|> </s> <s> [CLS] [MASK] <unk> <pad>',
    "URLs": "https://example.org/a?b=c&d=%20e#f user@example.org /usr/local/lib C:\\Windows",
    "capitals": "HTTPServer XMLHttpRequest iPhone McDonald ALLCAPS camelCase snake_case",
    "combining marks": "e\u0301 a\u0300\u0301\u0302 n\u0303o\u0308 \u0301 x\u0301\u0301\u0301 \u0915\u094d\u0937\u093f",
    "composed and decomposed": "é e\u0301 Å A\u030a \u212b ﬁ fi ǅ Ǆ 각 \u1100\u1161\u11a8 \uf900",
    "a letter with 300 marks": "Z" + "\u0300\u0316\u0334" * 100,
    "emoji": "🙂🙃 😀😀😀 👍🏽 👨‍👩‍👧‍👦 🏳️‍🌈 🇩🇪🇯🇵🇺 ❤️ ☎︎ 1️⃣ 🧑🏿‍🚀 \U0001faf0",
    "joiners alone": "\u200d a\u200db \u200c\u200d\ufe0f \ufe0e x\ufe0f",
    "mixed scripts": "abcабвαβγאבגابجあいうアイウ漢字한글ไทยहिन्दीქართული አማርኛ",
    "scripts and numbers": "第1章 2024年3月 第٢ باب ३ भाग x²+y³ µm №5",
    "right to left": "שלום עולם! مرحبا بالعالم، كيف ١٢٣؟ \u202bRTL\u202c \u200fabc\u200e \u2067x\u2069",
    "Chinese": "我们今天去看电影，好不好？他说：“可以。”\n\n２０２４年１２月３１日",
    "Japanese": "吾輩は猫である。名前はまだ無い。カタカナﾊﾝｶｸー〜「」",
    "Thai without spaces": "ภาษาไทยไม่มีการเว้นวรรคระหว่างคำ",
    "beyond the basic plane": "𝒳𝓎𝕫 𐍈𐌰 𠜎𠜱 🀄 \U0010ffff \U000e0001 \U000f0000",
    "private use and non-characters": "\ue000\uf8ff \ufffe\uffff \ufdd0 \ufffd",
    "title case and modifiers": "ǅ ᾈ ʰʷˠ ªº ˈˌ",
    "mathematics": "∀x∈ℝ: ∑ᵢ xᵢ² ≥ 0 ⇒ ∫₀^∞ e^{-x}dx ≠ ∞",
    "box drawing": "┌─┬─┐\n│ │ │\n└─┴─┘ ▁▂▃ ▁a ▁▁b _▁_ Ġ Ċ Ġa ##ing ĠĠ",  # includes the signs of tokenizers' own spaces
    "one letter 20,000 times": "a" * 20_000,
    "two letters by turns": "ab" * 10_000,
    "one character of three bytes 5,000 times": "語" * 5000,
    "one emoji 3,000 times": "🙂" * 3000,
    "a word of 10,000 letters": "".join(chr(97 + (7 * index + index * index // 11) % 26) for index in range(10_000)),
    "a line of 5,000 signs": "=-" * 2500 + "\n" + "#" * 5000,
    "Unicode to its end": "".join(chr(point) for point in range(0x100, 0x110000, 337) if not 0xD800 <= point < 0xE000),
    "a letter of each": " ".join(chr(point) for point in range(0xA1, 0x3000, 13)),
    "a long document": _LINE * 2000,
}


def special_cases(tokens: Sequence[str]) -> dict[str, str]:
    """Return test texts, by name, that contain special tokens: whole, within other text, and cut into parts."""
    cases = {}
    for number, token in enumerate(tokens[:8]):
        half = len(token) // 2
        cases[f"special token {number}"] = token
        cases[f"special token {number} in text"] = (
            f"a{token}b {token} c\n{token}\n{token}{token}  {token}d {token[:-1]} {token[1:]} {token[:half]} "
            f"{token[half:]}{token[:half]}{token}{token[half:]} é{token}🙂 {token.upper()} {token.lower()} '{token}'"
        )
    if len(tokens) > 1:
        cases["all special tokens"] = "".join(tokens) + " x ".join(tokens)
    return cases


SAMPLE_VERSION = 1  # Raise it when the choice changes: it is part of a proof's cache key.
SAMPLE_BYTES = 4_000_000  # maximum; a larger corpus gives at least half of it
PIECE_CHARACTERS = 65_536  # length of the pieces into which longer documents are cut
RARE_CHARACTERS = 500_000  # maximum of the windows around new characters, in addition to the sample
WINDOW_CHARACTERS = 200  # text on either side of a new character
_SEARCHED_CHARACTERS = 100_000_000  # text that is searched for new characters: about 4 s
_PART_BYTES = 500_000


class Excerpt(NamedTuple):
    """Document number ``document``, or a part of a long one that begins at its character ``start``."""

    document: int
    start: int
    text: str

    @property
    def place(self) -> str:
        """Name of the excerpt's place, for messages."""
        return f"document {self.document}" + (f" from character {self.start}" if self.start else "")


def sample(corpus: Corpus) -> list[Excerpt]:
    """Return excerpts: every k-th piece up to SAMPLE_BYTES, and the first place of each character beyond ASCII."""
    kept: list[Excerpt] = []
    rare = _RareCharacters()
    stride, size = 1, 0
    for number, piece in enumerate(_pieces(corpus)):
        rare.search(piece)
        if number % stride == 0:
            kept.append(piece)
            size += utf8_bytes(piece.text)
            while size > SAMPLE_BYTES and len(kept) > 1:
                stride *= 2
                kept = kept[::2]
                size = sum(utf8_bytes(excerpt.text) for excerpt in kept)
    return sorted({*kept, *rare.found})


class _RareCharacters:
    """Collects an excerpt around the first place of each character beyond ASCII."""

    def __init__(self) -> None:
        self.found: list[Excerpt] = []
        self._seen = set(map(chr, range(128)))
        self._taken = self._searched = 0

    def search(self, piece: Excerpt) -> None:
        text = piece.text
        if text.isascii() or self._searched >= _SEARCHED_CHARACTERS:
            return
        self._searched += len(text)
        while self._taken < RARE_CHARACTERS and not self._seen.issuperset(text):
            place = next(index for index, character in enumerate(text) if character not in self._seen)
            start, end = max(0, place - WINDOW_CHARACTERS), place + WINDOW_CHARACTERS
            window = text[start:end]
            self._seen.update(window)
            self._taken += len(window)
            self.found.append(Excerpt(piece.document, piece.start + start, window))


def whole(corpus: Corpus) -> Iterator[Excerpt]:
    """Yield every document uncut, as an excerpt."""
    document = 0
    for texts in iter_texts(corpus):
        for text in texts:
            yield Excerpt(document, 0, text)
            document += 1


def parts(pieces: Iterable[Excerpt]) -> Iterator[list[Excerpt]]:
    """Yield groups of neighbouring excerpts, about half a megabyte each."""
    group: list[Excerpt] = []
    size = 0
    for piece in pieces:
        group.append(piece)
        size += utf8_bytes(piece.text)
        if size >= _PART_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def _pieces(corpus: Corpus) -> Iterator[Excerpt]:
    document = 0
    for texts in iter_texts(corpus):
        for text in texts:
            for start in range(0, max(len(text), 1), PIECE_CHARACTERS):
                yield Excerpt(document, start, text[start : start + PIECE_CHARACTERS])
            document += 1
