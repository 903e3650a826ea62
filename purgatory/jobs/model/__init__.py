"""What a delayed job is: its fields, its specification, and what each step makes of it.

Pure values and functions: no I/O, no event loop, no store.
"""
