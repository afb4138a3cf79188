"""An OpenAI-compatible server that answers deep research's prompts by rules, and not by a model.

It stands for a large model in tests and benchmarks: plans, notes and drafts are well-formed, notes
are sentences of the passage, and drafts cite the sources that they are made of.
"""

from __future__ import annotations

import json
import re
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

from agents.tools.sentences import ended, sentences
from agents.tools.terms import content_words, query_terms

MODEL = "scripted-70B"

SAYS = "It says: "
"""Begins a note, so that it is not the quote itself."""

_NOTE = re.compile(r"^\[(?P<number>\d+)\] (?P<text>.*?)(?: ?\(quote: .*\))?$", re.MULTILINE)


def plan(prompt: str, limit: int) -> dict[str, Any]:
    """One sub-question for each of the question's content words, up to the limit."""
    asked = query_terms(_question(prompt))[-limit:]
    return {"questions": [f"What is said about {word} there?" for word in asked]}


def reading(prompt: str) -> dict[str, Any]:
    """The sentence of the passage that shares most words with the question."""
    question, _, passage = prompt.partition("\n\n")
    wanted = content_words(question)
    body = " ".join(passage.partition(":\n")[2].rpartition("\n\n")[0].split())
    best = max(sentences(body) or [body], key=lambda each: len(content_words(each) & wanted))
    is_relevant = not wanted.isdisjoint(content_words(best))
    return {"relevant": is_relevant, "note": f"{SAYS}{ended(best, 300).rstrip('.')}."}


def reflection(prompt: str, limit: int) -> dict[str, Any]:
    """One further question, about a word of the first note that the question does not have."""
    known = content_words(_question(prompt))
    notes = " ".join(match["text"] for match in _NOTE.finditer(prompt))
    new = [word for word in query_terms(notes) if word not in known and len(word) > 4][
        : min(limit, 1)
    ]
    return {"enough": not new, "questions": [f"How does {word} relate to it?" for word in new]}


def draft(prompt: str) -> dict[str, Any]:
    """A section for each pair of notes; it cites both."""
    notes = [(int(match["number"]), match["text"]) for match in _NOTE.finditer(prompt)]
    sections = [
        {
            "heading": " ".join(query_terms(pair[0][1].removeprefix(SAYS))[:4])
            .capitalize()[:80]
            .ljust(3, "."),
            "text": " ".join(f"{text[:320]} [{number}]" for number, text in pair)[:700].ljust(
                40, "."
            ),
            "citations": [number for number, _ in pair],
        }
        for pair in (notes[at : at + 2] for at in range(0, min(len(notes), 8), 2))
    ]
    title = f"On {_question(prompt)}"
    return {"title": title[:100].ljust(8, "."), "sections": sections}


def answer(request: dict[str, Any]) -> str:
    """The answer to a chat request with a JSON schema; raises KeyError for another request."""
    schema = request["response_format"]["json_schema"]["schema"]
    prompt = request["messages"][-1]["content"]
    limit = schema["properties"].get("questions", {}).get("maxItems", 1)
    by_title = {
        "Plan": lambda: plan(prompt, limit),
        "Reading": lambda: reading(prompt),
        "Reflection": lambda: reflection(prompt, limit),
        "Draft": lambda: draft(prompt),
    }
    return json.dumps(by_title[schema["title"]]())


@contextmanager
def scripted_server() -> Iterator[tuple[str, Counter[str]]]:
    """Serve on a free port; gives the URL, and a count of answers by the schema's title."""
    counts: Counter[str] = Counter()

    class Handler(_Handler):
        answered = counts

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1", counts
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    answered: ClassVar[Counter[str]]

    def do_GET(self) -> None:
        """The list of models."""
        card = {"id": MODEL, "object": "model", "owned_by": "script", "max_model_len": 32_768}
        self._send("application/json", json.dumps({"object": "list", "data": [card]}))

    def do_POST(self) -> None:
        """A streamed chat answer, in one part."""
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        text = answer(request)
        self.answered[request["response_format"]["json_schema"]["schema"]["title"]] += 1
        choice = {"index": 0, "delta": {"content": text}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        head = {"id": "1", "object": "chat.completion.chunk", "created": 0, "model": MODEL}
        parts = [head | {"choices": [choice]}, head | {"choices": [], "usage": usage}]
        events = "".join(f"data: {json.dumps(part)}\n\n" for part in parts)
        self._send("text/event-stream", f"{events}data: [DONE]\n\n")

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 (its name there)
        """Nothing: stderr is for progress."""

    def _send(self, media_type: str, body: str) -> None:
        content = body.encode()
        self.send_response(200)
        self.send_header("Content-Type", media_type)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def _question(prompt: str) -> str:
    return prompt.partition("Question: ")[2].partition("\n")[0]
