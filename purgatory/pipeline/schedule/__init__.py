"""Delayed jobs from the rows of a DataFrame.

Reading jobs back as a table of Spark is in `source`.
"""
