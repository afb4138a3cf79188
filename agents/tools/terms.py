"""Terms: how texts and queries are divided into words for the search.

The index and the quoting both use these functions, so that a line is quoted for the same terms for
which its passage was found. All functions are pure.
"""

import re
import unicodedata

MAX_TERMS = 64
"""Limit on the terms of a query: a pasted page would have thousands."""

STOP_WORDS = frozenset(
    """
    a about after all also am an and any are as at be because been before being between both but
    by can could did do does doing for from had has have having he her here him his how i if in
    into is it its just me more most my no nor not of on once only or other our out over own same
    she should so some such than that the their them then there these they this those through to
    too under until up us very was we were what when where which while who whom whose why will
    with would you your
    """.split()  # noqa: SIM905 (one word a line would fill the file)
)

# Han and kana are written without spaces, so each pair of adjacent characters counts as a word.
_UNSPACED = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_UNSPACED_CHARACTER = re.compile(f"([{_UNSPACED}])")
# Unicode's Default_Ignorable_Code_Point: soft hyphens, joiners, marks of direction, variation
# selectors. They are invisible, and a tokenizer would split words at them.
_INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f"
    "\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff]"
)
# Thai, Lao, Burmese and Khmer separate words by nothing else than zero-width spaces.
_ZERO_WIDTH_SPACE = re.compile("(?<=[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff])\u200b")
_RUN = re.compile(f"[{_UNSPACED}]+|[^{_UNSPACED}]+")
_ASCII_WORD = re.compile(r"[A-Za-z0-9_]+")
_SUFFIXES = ("ingly", "edly", "ings", "ing", "ed", "es", "ly", "s", "e")


def index_form(text: str) -> str:
    """The text for the full-text index: normalised, with spaces between unspaced characters."""
    if text.isascii():
        return text
    return _UNSPACED_CHARACTER.sub(r" \1 ", _normalised(text))


def words(text: str) -> list[str]:
    """The words of a text in order, lower case; unspaced scripts give pairs of characters."""
    if text.isascii():
        return [word.lower() for word in _ASCII_WORD.findall(text) if word.strip("_")]
    normal = _normalised(text).lower()
    spaced = "".join(character if _in_word(character) else " " for character in normal)
    result = []
    for word in spaced.split():
        for run in _RUN.findall(word):
            if not _UNSPACED_CHARACTER.match(run):
                if run.strip("_"):
                    result.append(run)
            elif len(run) == 1:
                result.append(run)
            else:
                result.extend(run[i : i + 2] for i in range(len(run) - 1))
    return result


def query_terms(query: str) -> list[str]:
    """The distinct terms of a query, in order; at most MAX_TERMS.

    Stop words are left out, unless the query consists of stop words only.
    """
    distinct = list(dict.fromkeys(words(query)))
    content_words = [word for word in distinct if word not in STOP_WORDS]
    return (content_words or distinct)[:MAX_TERMS]


def content_words(text: str) -> frozenset[str]:
    """The stems of a text's words, without stop words and single letters, as of "a tool's"."""
    return frozenset(
        stem(word)
        for word in words(text)
        if word not in STOP_WORDS and not (len(word) == 1 and word.isascii() and word.isalpha())
    )


def match_expression(terms: list[str]) -> str:
    """An FTS5 query that matches any of the terms; they are quoted, so that none is syntax."""
    return " OR ".join('"{}"'.format(index_form(term).replace('"', '""')) for term in terms)


def stem(word: str) -> str:
    """A rough English stem, with which "deadlines" and "deadline" are equal."""
    if word.isascii():
        for suffix in _SUFFIXES:
            if word.endswith(suffix) and len(word) - len(suffix) >= 3:
                return word[: -len(suffix)]
    return word


def _normalised(text: str) -> str:
    """NFKC without invisible characters.

    NFKC replaces ligatures and full-width letters, which are not typed into queries either.
    """
    return unicodedata.normalize("NFKC", _INVISIBLE.sub("", _ZERO_WIDTH_SPACE.sub(" ", text)))


def _in_word(character: str) -> bool:
    # Combining marks are part of a word: most Indic words would be split at them otherwise.
    return character == "_" or unicodedata.category(character)[0] in "LNM"
