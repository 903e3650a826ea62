"""The command line of the pipeline: commands and their options.

What the commands do is in the rooms of the jobs, which do not import this one.
"""
