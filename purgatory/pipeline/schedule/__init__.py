"""Rows of a DataFrame as delayed jobs."""
