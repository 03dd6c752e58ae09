"""Adapters for runtimes: a function each, which opens a model, under what is known of its runtime.

Files are loaded twice: here for what is known, and by the script ``child.py`` in an interpreter that may lack
everything but NumPy and the runtime. Each therefore imports nothing of rnnlower but ``child``, and a runtime
within its function.
"""
