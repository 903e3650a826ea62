"""The rules of all tables, once, in DuckDB's SQL, and what runs them: DuckDB, or Spark.

`spark` translates a query to Spark's SQL. Which files are read and published is in `outcomes` and
`rollups`.
"""
