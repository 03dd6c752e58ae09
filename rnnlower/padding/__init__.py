"""Padding to a maximum: what each operator does to the steps after a sequence's end, and what undoes it."""
