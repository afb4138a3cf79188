"""Search: any text is a query, results have a deterministic order, from any thread."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agents.tools.corpus import Corpus
from agents.tools.quoting import best_quote
from agents.tools.terms import MAX_TERMS, query_terms, words
from tests.unit.agents.corpus_samples import law, prose, write

TOPICS = ["deadlines", "schedulers", "forests", "kernels", "graphs"]
WORDS = st.lists(st.sampled_from([*TOPICS, "AND", "OR", "NOT", "NEAR(", "part", "*", '"', "^a:b"]))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    root = tmp_path_factory.mktemp("search")
    files: dict[str, str | bytes] = {f"{topic}.md": prose(topic) for topic in TOPICS}
    files["chinese.txt"] = "调度器在最后期限之前完成任务。\n"
    files["accents.txt"] = "Le café de la gare, where the ﬁle was left.\n"
    files["identifiers.txt"] = "The bound max_num_seqs limits the worker's slots.\n"
    write(root / "c", files)
    return Corpus.open(root / "c", index_path=root / "i.db")


@law
@given(query=st.one_of(st.text(), WORDS.map(" ".join), st.text('"*^:()-+{}~\\\0 aé')))
@example(query="")
@example(query='"')
@example(query="NEAR(a b, 2) OR text: * -x ^y {a b}: 'c'; DROP TABLE files")
@example(query="\ud800 lone surrogate \0")
@example(query="word " * 2000)
@example(query="x" * 10_000)
@example(query="".join(chr(0x4E00 + i % 5000) for i in range(10_000)))
@example(query="" + "".join(map(chr, range(0x300, 0x370))))
def test_any_text_is_a_query(corpus: Corpus, query: str) -> None:
    results = corpus.search(query, limit=3)
    assert len(results) <= 3
    scores = [passage.score for passage in results]
    assert scores == sorted(scores, reverse=True)


@pytest.mark.parametrize("query", ["", " \n", '"*^', "\0", "the"])
def test_a_query_without_terms_finds_nothing_and_a_stop_word_finds_itself(
    corpus: Corpus, query: str
) -> None:
    results = corpus.search(query)
    assert all(query in passage.text.lower() for passage in results)
    assert bool(results) == (query == "the")


def test_stop_words_are_terms_only_if_there_are_no_other_words(corpus: Corpus) -> None:
    assert query_terms("What is the deadline of a run?") == ["deadline", "run"]
    assert query_terms("to be or not to be") == ["to", "be", "or", "not"]


def test_the_number_of_terms_of_a_query_is_limited() -> None:
    assert len(query_terms(" ".join(f"w{i}" for i in range(10_000)))) == MAX_TERMS


@pytest.mark.parametrize(
    ("query", "file"),
    [
        ("which forest?", "forests.md"),
        ("CAFE", "accents.txt"),
        ("cafe\u0301", "accents.txt"),
        ("file", "accents.txt"),
        ("max_num_seqs", "identifiers.txt"),
        ("最后期限是什么", "chinese.txt"),
        ("调", "chinese.txt"),
    ],
)
def test_the_best_passage_is_found_first(corpus: Corpus, query: str, file: str) -> None:
    assert corpus.search(query)[0].file == file


def test_results_are_verbatim_in_every_script(corpus: Corpus) -> None:
    (chinese,) = corpus.search("期限")
    (accents,) = corpus.search("gare")
    assert chinese.text == "调度器在最后期限之前完成任务。"
    assert accents.text == "Le café de la gare, where the ﬁle was left."


@pytest.mark.parametrize("invisible", ["\u00ad", "\u200b", "\u200c", "\u200d", "\u2060", "\ufeff"])
@pytest.mark.parametrize("suffix", ["md", "html"])
def test_invisible_characters_do_not_split_words(
    tmp_path: Path, invisible: str, suffix: str
) -> None:
    text = f"The dead{invisible}line is di{invisible}vid{invisible}ed."
    folder = write(tmp_path / "c", {f"a.{suffix}": text})
    corpus = Corpus.open(folder, index_path=tmp_path / "i.db")
    for query in ("deadline", f"dea{invisible}dline", "divided"):
        (found,) = corpus.search(query)
        assert found.text == text
        assert best_quote(found, query).text == text


def test_a_zero_width_space_separates_words_of_scripts_without_spaces() -> None:
    assert words("ខ្ញុំ\u200bស្រលាញ់") == ["ខ្ញុំ", "ស្រលាញ់"]
    assert words("dead\u200bline") == ["deadline"]


def test_equal_scores_are_ordered_by_file_then_line(tmp_path: Path) -> None:
    same = "# One\n\nexactly alike\n\n# Two\n\nexactly alike\n"
    for order in (["b.md", "a.md", "c.md"], ["c.md", "a.md", "b.md"]):
        root = tmp_path / order[0]
        for name in order:  # so that their order in the index differs from that of their names
            write(root / "c", {name: same})
            corpus = Corpus.open(root / "c", index_path=root / "i.db")
        results = [(passage.file, passage.line) for passage in corpus.search("alike", limit=5)]
        assert results == [("a.md", 1), ("a.md", 5), ("b.md", 1), ("b.md", 5), ("c.md", 1)]


SECTION = "The deadline of a run is **divided** over its stages, as [past runs](runs.md) spent it."
PAGE = SECTION.replace("**", "").replace("[past runs](runs.md)", "<a href=r.html>past runs</a>")


def test_the_same_passage_in_several_formats_is_found_once_if_distinct(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {
        "a.md": f"# Deadlines\n\n{SECTION}\n",
        "a.html": f"<h1>Deadlines</h1>\n<p>{PAGE}",
        "all.html": f"<h1>Runs</h1><p>A run has stages.<h1>Deadlines</h1><p>{PAGE}",
        "other.md": f"# Deadlines\n\n{SECTION.replace('past', '30')}\n",
    }
    corpus = Corpus.open(write(tmp_path / "c", files), index_path=tmp_path / "i.db")
    assert len(corpus.search("deadline divided")) == 4
    distinct = corpus.search("deadline divided", distinct=True)
    assert len(distinct) == 2
    assert "other.md" in {passage.file for passage in distinct}


def test_an_index_that_was_updated_equals_a_new_one(tmp_path: Path) -> None:
    folder = write(tmp_path / "c", {f"{topic}.md": prose("something else") for topic in TOPICS})
    Corpus.open(folder, index_path=tmp_path / "old.db")
    for topic in reversed(TOPICS):
        write(folder, {f"{topic}.md": prose(topic, 9)})
        updated = Corpus.open(folder, index_path=tmp_path / "old.db")
    new = Corpus.open(folder, index_path=tmp_path / "new.db")
    assert list(updated.passages()) == list(new.passages())
    query = "what is said about deadlines, kernels and graphs in part 3"
    assert updated.search(query, limit=50) == new.search(query, limit=50)


def test_per_file_limits_the_results_from_one_file(corpus: Corpus) -> None:
    results = corpus.search("paragraph something", limit=4, per_file=1)
    assert len({passage.file for passage in results}) == len(results) == 4
    assert len(corpus.search("deadlines", limit=10, per_file=2)) == 2


@pytest.mark.parametrize(("limit", "per_file"), [(0, None), (-1, None), (5, 0)])
def test_a_limit_below_1_finds_nothing(corpus: Corpus, limit: int, per_file: int | None) -> None:
    assert corpus.search("deadlines", limit=limit, per_file=per_file) == []


def test_many_threads_get_the_same_results_as_one(corpus: Corpus) -> None:
    search: Callable[[str], object] = corpus.search
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(search, TOPICS * 20)) == [*map(search, TOPICS)] * 20
