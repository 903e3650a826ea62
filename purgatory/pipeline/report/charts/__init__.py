"""The charts of the report, drawn by matplotlib, and the data of those that the page draws.

Not here: text and tables, which are in `report` itself, and figures, which are read from tables.
"""
