"""What the client of Spark Connect imports; its tests have a server."""

from pyspark.sql.connect.session import SparkSession

from purgatory.pipeline import spark_session

assert SparkSession.builder is not None
found = ""
try:
    spark_session(master="sc://127.0.0.1:9")
except RuntimeError as error:
    found = str(error)
assert "no Spark Connect server at sc://127.0.0.1:9" in found
