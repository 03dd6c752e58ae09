"""Reports: a self-contained HTML page on what a command did, with inline SVG and without scripts."""

from rnnlower.reporting.content import (
    bench_sections,
    conversion_sections,
    lifting_sections,
    lowering_sections,
    model_facts,
    padding_sections,
    result_section,
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
    "lifting_sections",
    "lowering_sections",
    "model_facts",
    "padding_sections",
    "result_section",
    "stream_sections",
    "verification_sections",
    "write_page",
]
