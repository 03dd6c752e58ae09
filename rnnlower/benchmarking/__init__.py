"""Benchmarks: the speed of a model and of its lowered forms on this machine.

Nothing is imported here: the child process that measures needs little.
"""
