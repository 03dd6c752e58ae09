"""Padding to a maximum: what each operator does to the steps behind a sequence's end, and what undoes it."""
