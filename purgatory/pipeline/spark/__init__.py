"""The Spark session, and the files and tables that every job of the pipeline uses."""
