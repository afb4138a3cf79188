"""Folders and files for the corpus tests."""

import io
import os
from pathlib import Path

import pypdf
from hypothesis import settings

law = settings(deadline=None)
"""For property tests: a slow machine must not make them fail."""

OLD_NS = 1_600_000_000_000_000_000
"""So old that the index trusts it, whatever the resolution of the file system's clock."""


def write(folder: Path, files: dict[str, str | bytes], *, mtime_ns: int = OLD_NS) -> Path:
    """Write files into a folder, all with the same old time; returns the folder."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        os.utime(path, ns=(mtime_ns, mtime_ns))
    return folder


def pdf(*pages: list[str]) -> bytes:
    """A minimal PDF with one page for each list of ASCII lines."""
    kids = " ".join(f"{4 + 2 * i} 0 R" for i in range(len(pages)))
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for i, lines in enumerate(pages):
        content = "BT /F1 12 Tf 14 TL 50 750 Td " + " T* ".join(f"({t}) Tj" for t in lines) + " ET"
        objects.append(
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 600 800] /Contents {5 + 2 * i} 0 R"
            " /Resources << /Font << /F1 3 0 R >> >> >>"
        )
        objects.append(f"<< /Length {len(content)} >>\nstream\n{content}\nendstream")
    data = b"%PDF-1.4\n"
    offsets = []
    for number, body in enumerate(objects, start=1):
        offsets.append(len(data))
        data += f"{number} 0 obj\n{body}\nendobj\n".encode()
    table = "".join(f"{offset:010} 00000 n \n" for offset in offsets)
    size = len(objects) + 1
    end = f"xref\n0 {size}\n0000000000 65535 f \n{table}trailer\n<< /Size {size} /Root 1 0 R >>\n"
    return data + f"{end}startxref\n{len(data)}\n%%EOF\n".encode()


def pdf_bomb(num_operators: int, *, num_pages: int = 1) -> bytes:
    """A small PDF with many text operators: its pages share one compressed stream."""
    writer = pypdf.PdfWriter(io.BytesIO(pdf(*[[] for _ in range(num_pages)])))
    stream = pypdf.generic.StreamObject()
    stream.set_data(b"BT /F1 12 Tf " + b"(a) Tj " * num_operators + b"ET")
    contents = writer._add_object(stream.flate_encode(9))
    for page in writer.pages:
        page[pypdf.generic.NameObject("/Contents")] = contents
    out = io.BytesIO()
    writer.write(out)
    return out.getvalue()


def prose(topic: str, num_paragraphs: int = 6) -> str:
    """A markdown document on a topic."""
    parts = [f"# All about {topic}"]
    for i in range(num_paragraphs):
        parts.append(f"## Part {i} of {topic}")
        parts.append(f"Paragraph {i} says something about {topic}.\nIt has a second line.")
    return "\n\n".join(parts) + "\n"
