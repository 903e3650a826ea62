"""Checks of the journal's files before they are read."""

from __future__ import annotations

import re
from typing import Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped] # it ships no types
from pyspark.sql import SparkSession

from purgatory.pipeline.outcomes.schema import EVENT_SCHEMA, SCHEMA_VERSIONS, VERSION_KEY
from purgatory.pipeline.spark.folder import Folder

_PARQUET = {
    "string": r"binary {name} \((STRING|UTF8)\)",
    "bigint": r"int64 {name}( \(INTEGER\(64,true\)\))?",
    "int": r"int32 {name}( \(INTEGER\(32,true\)\))?",
    "timestamp": r"int64 {name} \((TIMESTAMP\(MICROS,true\)|TIMESTAMP_MICROS)\)",
    "array<string>": r"group {name} \(LIST\) \{{",
}
_COLUMNS = {
    field.name: re.compile(_PARQUET[field.dataType.simpleString()].format(name=field.name))
    for field in EVENT_SCHEMA
}


class JournalFiles:
    """Reads the footers of Parquet files, which show whether a file is complete and of our schema.

    On the driver, file by file, in about a millisecond each; Spark would fail the whole job.
    """

    def __init__(self, spark: SparkSession, folder: Folder) -> None:
        """Check the files of `folder`."""
        # Any: py4j's objects have the methods of the Java objects behind them.
        jvm: Any = spark._jvm
        self._parquet: Any = jvm.org.apache.parquet.hadoop
        self._folder = folder

    def rows(self, path: str) -> int:
        """Return the number of rows of the file at `path`. Raises ValueError if it is bad.

        The rows themselves are not read: damage in the middle of the file is found later.
        """
        try:
            footer, rows = self._footer(path)
        except Py4JJavaError as error:
            raise ValueError(_reason(error)) from error
        version = footer.getKeyValueMetaData().get(VERSION_KEY)
        if version is None:
            raise ValueError(f"no {VERSION_KEY} in its metadata: not written by the journal")
        if version not in SCHEMA_VERSIONS:
            known = ", ".join(SCHEMA_VERSIONS)
            raise ValueError(f"schema version {version!r}; known is {known}: use a newer release")
        schema = footer.getSchema().toString()
        wrong = [name for name, column in _COLUMNS.items() if not column.search(schema)]
        if wrong:
            raise ValueError(f"missing or of another type: {', '.join(wrong)}")
        return rows

    def _footer(self, path: str) -> tuple[Any, int]:
        java_path = self._folder.java_path(path)
        source = self._parquet.util.HadoopInputFile.fromPath(java_path, self._folder.configuration)
        reader = self._parquet.ParquetFileReader.open(source)
        try:
            return reader.getFooter().getFileMetaData(), int(reader.getRecordCount())
        finally:
            reader.close()


def unreadable_file(error: Exception) -> tuple[str, str] | None:
    """Return the URI of the file whose rows Spark could not read, and why; None for other errors.

    The path is only in the text of the error.
    """
    text = str(error)
    found = re.search(r"\[FAILED_READ_FILE[^\]]*\].*? file (\S+?\.parquet)", text)
    if found is None:
        return None
    causes = re.findall(r"^Caused by: [\w.$]+: (.+)$", text, re.MULTILINE)
    return found[1], f"damaged: {causes[-1] if causes else 'its rows cannot be read'}"


def _reason(error: Py4JJavaError) -> str:
    thrown = error.java_exception
    text = str(thrown.getMessage() or thrown.toString()).splitlines()[0]
    # The error of Parquet's reader for a footer; others, such as missing rights, are kept as they
    # are.
    if thrown.getClass().getName() == "java.lang.RuntimeException":
        _, _, detail = text.partition(" is not a Parquet file. ")
        return f"not a Parquet file, or cut off: {detail or text}"
    return text
