"""The layout of the code: the imports between its rooms, and what breaks the rules for them.

Here belongs everything that reads imports. The tests are in `tests/test_layers.py`.
"""
