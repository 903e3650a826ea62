"""The layout of the code: its table, what breaks the table, and the picture drawn from it.

Here belongs everything that reads imports. The tests are in `tests/test_layers.py`.
"""
