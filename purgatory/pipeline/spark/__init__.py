"""The Spark session, and the folders, tables and errors that all jobs share.

Nothing here knows operations or outcomes.
"""
