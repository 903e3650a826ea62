"""What all rooms print with: numbers and durations as text, and lines of progress.

Not here: options and commands, which are in `cli`.
"""
