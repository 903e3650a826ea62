"""Pairs of defer and fire at the same time: `python -m tests.chaos.races` is the long form."""
