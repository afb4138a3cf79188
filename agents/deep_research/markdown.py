"""A report as Markdown and as JSON."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import asdict

from agents.deep_research.marks import marked_numbers, one_line, printable
from agents.deep_research.report import Citation, Report
from orchestrator.durations import shown
from orchestrator.runtime.results import RunResult
from serving.generation import EngineInfo

RANDOM_WEIGHTS = (
    "The model's weights are random: the text below is meaningless. "
    "The sources and quotes are real."
)


def to_markdown(result: RunResult[Report], info: EngineInfo) -> str:
    """The report as a Markdown document."""
    report = result.value
    citations = {citation.number: citation for citation in report.citations}
    parts = [f"# {report.title}"]
    if report.title != one_line(report.question):
        parts.append(f"*Question: {one_line(report.question)}*")
    if info.random_weights:
        parts.append(f"> **{RANDOM_WEIGHTS}**")
    elif info.caveat:
        parts.append(f"> **{info.model}, {info.caveat}.**")
    for section in report.sections:
        parts.append(f"## {section.heading}")
        parts += [f'> "{one_line(citations[n].quote)}" [{n}]' for n in section.quotes]
        marked = {*marked_numbers(section.text), *section.quotes}
        marks = "".join(f"[{number}]" for number in section.citations if number not in marked)
        parts.append(f"{section.text} {marks}".strip())
    if report.citations:
        parts.append("## Sources")
        quoted = {number for section in report.sections for number in section.quotes}
        parts.append("\n".join(_source_line(each, quoted) for each in report.citations))
    if report.cut:
        parts.append("## Left out")
        parts.append("\n".join(f"- {one_line(sentence)}" for sentence in report.cut))
    parts.append("---")
    parts.append(_footer(result, info))
    return "\n\n".join(part for part in parts if part) + "\n"


def to_json(result: RunResult[Report], info: EngineInfo) -> dict[str, object]:
    """The report as a JSON object; times are in seconds."""
    report = result.value
    return {
        "question": report.question,
        "report": to_markdown(result, info),
        "citations": [asdict(citation) for citation in report.citations],
        "rounds": report.rounds,
        "cut": list(report.cut),
        "run_id": result.run_id,
        "deadline_s": result.deadline_s,
        "elapsed_s": result.elapsed_s,
        "in_time": result.in_time,
        "stages": [asdict(stage) for stage in result.stages],
        "engine": asdict(info),
    }


def _footer(result: RunResult[Report], info: EngineInfo) -> str:
    deadline = "no deadline"
    if result.deadline_s is not None:
        met = "in time for" if result.in_time else "late for"
        deadline = f"{met} its deadline of {shown(result.deadline_s)}"
    model = f"{info.model} (random weights)" if info.random_weights else info.model
    return (
        f"Run `{result.run_id}`: {shown(result.elapsed_s)}, {deadline}; "
        f"{len(result.stages)} stages, model {model}, engine {info.name}."
    )


def _source_line(citation: Citation, quoted: Set[int]) -> str:
    """Where a quote is; with the quote, unless a section shows it."""
    lines = f"{citation.line}"
    if citation.end_line > citation.line:
        lines += f"-{citation.end_line}"
    quote = "" if citation.number in quoted else f': "{printable(citation.quote)}"'
    return f"[{citation.number}] `{one_line(citation.file)}:{lines}`{quote}  "
