"""One self-contained HTML page about what a command did: no script, nothing external, inline SVG."""

from rnnlower.reporting.content import (
    bench_sections,
    conversion_sections,
    lowering_sections,
    model_facts,
    stream_sections,
    verification_sections,
)
from rnnlower.reporting.page import Page, Section, check_report, write_page

__all__ = [
    "Page",
    "Section",
    "bench_sections",
    "check_report",
    "conversion_sections",
    "lowering_sections",
    "model_facts",
    "stream_sections",
    "verification_sections",
    "write_page",
]
