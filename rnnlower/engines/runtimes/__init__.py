"""Adapters for runtimes, one per file: ``ABOUT`` describes the runtime, ``load`` opens a model on it.

Files are loaded twice: here for ``ABOUT``, and by the script ``child.py`` in an interpreter that may lack
everything but NumPy and the runtime. Each therefore imports nothing of rnnlower but ``child``, and its
runtime within ``load``. A module may have a function ``version`` if no Python package provides it.
"""
