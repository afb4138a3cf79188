"""Free text -> the terms that a search looks for.

Everything here is pure, and the index and the quoting share it, so that the line that is quoted
is chosen by the same notion of a term as the passage that was found.
"""

import re
import unicodedata

MAX_TERMS = 64  # a pasted page must not turn into a query of thousands of terms

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

# Han and kana are written without spaces, so a "word" there is each pair of neighbours.
_UNSPACED = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_UNSPACED_CHARACTER = re.compile(f"([{_UNSPACED}])")
_RUN = re.compile(f"[{_UNSPACED}]+|[^{_UNSPACED}]+")
_ASCII_WORD = re.compile(r"[A-Za-z0-9_]+")
_SUFFIXES = ("ingly", "edly", "ings", "ing", "ed", "es", "ly", "s", "e")


def index_form(text: str) -> str:
    """The text as the full-text index sees it: one form per character, unspaced scripts spaced.

    NFKC undoes ligatures and full-width letters, which nobody types into a query.
    """
    if text.isascii():
        return text
    return _UNSPACED_CHARACTER.sub(r" \1 ", unicodedata.normalize("NFKC", text))


def words(text: str) -> list[str]:
    """The words of a text in order, lower case; a run of an unspaced script gives its pairs."""
    if text.isascii():
        return [word.lower() for word in _ASCII_WORD.findall(text) if word.strip("_")]
    normal = unicodedata.normalize("NFKC", text).lower()
    spaced = "".join(character if _in_word(character) else " " for character in normal)
    found = []
    for word in spaced.split():
        for run in _RUN.findall(word):
            if not _UNSPACED_CHARACTER.match(run):
                if run.strip("_"):
                    found.append(run)
            elif len(run) == 1:
                found.append(run)
            else:
                found.extend(run[i : i + 2] for i in range(len(run) - 1))
    return found


def query_terms(query: str) -> list[str]:
    """The distinct terms of a query, in order; at most MAX_TERMS.

    Stop words are left out unless the query holds nothing else.
    """
    distinct = list(dict.fromkeys(words(query)))
    telling = [word for word in distinct if word not in STOP_WORDS]
    return (telling or distinct)[:MAX_TERMS]


def match_expression(terms: list[str]) -> str:
    """An FTS5 query that finds any of the terms; quoted, so that no term is read as syntax."""
    return " OR ".join('"{}"'.format(index_form(term).replace('"', '""')) for term in terms)


def stem(word: str) -> str:
    """A rough English stem: enough to see that "deadlines" answers a question on a deadline."""
    if word.isascii():
        for suffix in _SUFFIXES:
            if word.endswith(suffix) and len(word) - len(suffix) >= 3:
                return word[: -len(suffix)]
    return word


def _in_word(character: str) -> bool:
    # Marks belong to their word: without them most Indic words would fall to pieces.
    return character == "_" or unicodedata.category(character)[0] in "LNM"
