"""A runtime each: ``ABOUT`` describes it (see ``Engine`` in ``known.py``), ``load`` opens a model on it.

Files are loaded twice: here for ``ABOUT``, and by the script ``child.py``, in an interpreter that may lack
everything but NumPy and the runtime. So each stands by itself, and imports its runtime within ``load``. A
module may have a function ``version`` where no Python package tells.
"""
