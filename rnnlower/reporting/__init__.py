"""Reports: a self-contained HTML page on what a command did, with inline SVG and without scripts."""
