"""Ten reports of deep research, printed, and what is wrong with them, counted.

    python -m benchmarks.research_reports [--json] [--papers DIR] [--deadline 60] [--scripted]

Five questions over this project's documents, five over a folder of papers (left out, saying so, if
it is absent). Counted are quotes that are not in the lines they name, sentences that stand twice in
a report, texts that are cut within a word, and sections without a quote that shares a content word
with the heading. --scripted asks a server that stands for a large model: it answers well-formed
plans, notes and drafts by rules.
"""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from agents.deep_research.markdown import to_markdown
from agents.deep_research.pipeline import deep_research
from agents.deep_research.report import Citation, Report
from agents.deep_research.support import shares_words
from agents.tools.corpus import Corpus
from agents.tools.readers import source_lines
from agents.tools.sentences import sentences
from agents.tools.terms import words
from benchmarks.command import exit_code, parser_of, print_result, say
from benchmarks.scripted_server import scripted_server
from orchestrator import RunResult, Settings, open_runtime
from store.records import CallKind, CallRecord

ROOT = Path(__file__).resolve().parent.parent

DOCS = (
    "When does the scheduler evict a request?",
    "What does a tool's effects setting change on resume?",
    "How do I connect a LangGraph graph to the runtime?",
    "How are predictions of answer lengths made?",
    "Which settings limit structured output?",
)
PAPERS = (
    "How does simulated annealing order requests?",
    "What is goodput and how is it measured?",
    "How are prefill and decode mixed in a batch?",
    "How does a pattern graph predict the remaining calls of a program?",
    "How are checkpoints of a graph recovered after a failure?",
)

STEPS = ("plan", "read", "reflect", "write")


@dataclass(frozen=True, slots=True)
class Figures:
    """What is in a report, and what is wrong with it.

    Attributes:
        unresolved: quotes that are not in the lines that they name.
        repeated: sentences that stand there before.
        cut_words: quotes and texts that begin or end within a word.
        unsupported: sections without a source that shares a content word with the heading.
        model_sentences: sentences that the model wrote.
        calls: LLM calls; of plan, read, reflect and write each.
        cached: share of the prompt tokens that the prefix cache had.
    """

    question: str
    seconds: float
    in_time: bool
    sections: int
    quotes: int
    model_sentences: int
    unresolved: int
    repeated: int
    cut_words: int
    unsupported: int
    rounds: int
    calls: dict[str, int]
    cached: float


def main() -> int:
    """Run, count and print."""
    parser = parser_of(__doc__)
    parser.add_argument("--papers", type=Path, default=ROOT.parent / "shared" / "papers")
    parser.add_argument("--deadline", type=float, default=60.0, metavar="SECONDS")
    parser.add_argument("--scripted", action="store_true", help="a scripted large model")
    options = parser.parse_args()

    def work() -> None:
        folders = {ROOT / "docs": DOCS}
        if options.papers.is_dir():
            folders[options.papers] = PAPERS
        else:
            say(f"{options.papers} is absent: the five questions over papers are left out")
        figures, reports = asyncio.run(
            all_reports(folders, options.deadline, scripted=options.scripted)
        )
        text = "\n".join(reports) + table(figures)
        print_result([asdict(each) for each in figures], text, as_json=options.json)

    return exit_code(work)


async def all_reports(
    folders: Mapping[Path, Sequence[str]], deadline_s: float, *, scripted: bool
) -> tuple[list[Figures], list[str]]:
    """The figures and the Markdown of each report."""
    figures, reports = [], []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        settings = Settings(store=f"sqlite:///{folder / 'store.db'}")
        if scripted:
            url, _ = stack.enter_context(scripted_server())
            settings = Settings(store=settings.store, engine=url)
        async with open_runtime(settings) as runtime:
            for documents, questions in folders.items():
                corpus = Corpus.open(documents, index_path=folder / f"{documents.name}.db")
                for question in questions:
                    say(question)
                    flow = deep_research.options(deadline=deadline_s)
                    result = await runtime.run(flow, question, corpus)
                    async with runtime.store.reading() as tx:
                        calls = await tx.calls.of_run(result.run_id)
                    reports.append(to_markdown(result, runtime.engine.info))
                    figures.append(measured(result, corpus, calls))
    return figures, reports


def measured(result: RunResult[Report], corpus: Corpus, calls: Sequence[CallRecord]) -> Figures:
    """The figures of one report."""
    report = result.value
    quoted = {citation.number: citation for citation in report.citations}
    said = [sentence for section in report.sections for sentence in sentences(section.text)]
    shown = [sentence for each in report.citations for sentence in sentences(each.quote)]
    every = Counter(" ".join(words(sentence)) for sentence in [*shown, *said])
    asked = [call for call in calls if call.kind is CallKind.LLM]
    prompt_tokens = sum(call.prompt_tokens or 0 for call in asked)
    return Figures(
        question=report.question,
        seconds=result.elapsed_s,
        in_time=result.in_time,
        sections=len(report.sections),
        quotes=len(report.citations),
        model_sentences=len(said),
        unresolved=sum(not is_in_its_lines(each, corpus) for each in report.citations),
        repeated=sum(count - 1 for count in every.values()),
        cut_words=sum(cuts_a_word(each, corpus) for each in report.citations)
        + sum(not ends_whole(section.text) for section in report.sections),
        unsupported=sum(
            not any(shares_words(section.heading, quoted[n].quote) for n in section.citations)
            for section in report.sections
        ),
        rounds=report.rounds,
        calls=dict(Counter(re.split(r"[/\[#]", call.step_path)[0] for call in asked)),
        cached=sum(call.cached_tokens or 0 for call in asked) / max(prompt_tokens, 1),
    )


def lines_of(citation: Citation, corpus: Corpus) -> str:
    """The lines that a citation names, without their indents and joined by spaces."""
    lines = source_lines(corpus.folder / citation.file)[citation.line - 1 : citation.end_line]
    return " ".join(line.strip() for line in lines)


def is_in_its_lines(citation: Citation, corpus: Corpus) -> bool:
    """Whether a quote is, character by character, in the lines that it names."""
    return citation.quote in lines_of(citation, corpus)


def cuts_a_word(citation: Citation, corpus: Corpus) -> bool:
    """Whether a quote begins or ends within a word of its lines."""
    before, _, after = lines_of(citation, corpus).partition(citation.quote)
    return ((before[-1:] + citation.quote[:1]).isalnum() and bool(before)) or (
        bool(after) and (citation.quote[-1:] + after[:1]).isalnum()
    )


def ends_whole(text: str) -> bool:
    """Whether a text, without the marks of sources, is empty or ends with a sentence or "..."."""
    plain = re.sub(r"(\s?\[\d+\])+", "", text).rstrip()
    ends = ("...", *sentences(plain)[-1:])
    return not plain or plain.endswith(ends)


def calls_of(figures: Figures) -> str:
    """The number of LLM calls in each of STEPS."""
    return "/".join(str(figures.calls.get(step, 0)) for step in STEPS)


def table(figures: Sequence[Figures]) -> str:
    """The figures, a line a report."""
    rows = [
        f"{each.seconds:7.1f} {'yes' if each.in_time else 'no':>7} {each.sections:8}"
        f" {each.quotes:6} {each.model_sentences:9} {each.unresolved:10} {each.repeated:8}"
        f" {each.cut_words:9} {each.unsupported:11} {calls_of(each):>23}"
        f" {each.cached:6.0%}  {each.question}"
        for each in figures
    ]
    head = (
        "seconds in time sections quotes sentences unresolved repeated cut words unsupported"
        " plan/read/reflect/write cached  question"
    )
    return "\n".join([head, *rows])


if __name__ == "__main__":
    raise SystemExit(main())
