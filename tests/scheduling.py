"""How tests are handed out to the processes that run them side by side."""

from __future__ import annotations

import re

from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped] # it has no types

# Tests that share what is dear to start, by their ids: those for which the groups of a pattern are
# the same. (The mark that pytest-xdist has for this does nothing under pytest 9.2.)
TOGETHER = tuple(
    map(
        re.compile,
        (
            # A server of each kind.
            r"(.+/test_servers\.py)::\w+(\[.+\])",
            # The service in several processes.
            r"(.+/test_service_workers\.py)::test_(?:a_fire|jobs)_",
            # A run of the benchmark.
            r"(.+/test_bench\.py)::test_a_run_",
            # A browser.
            r"(.+/browser)/test_\w+\.py::",
            # The names in all sources.
            r"(.+/test_docs\.py)::test_what_a_page_names_",
            # A wheel.
            r"(.+/test_packaging\.py)::test_the_wheel_",
            # The Spark session, one for all: the first queries in a Java process cost most.
            r"(.+/pipeline)/(?:test_\w+\.py::.*(?<!py)spark|test_(?:commands|replay|truth)\.py::)",
        ),
    )
)

# Files of tests that take many seconds each: begun last, they would be waited for by all others.
FIRST = re.compile(
    r"tests/(pipeline/|chaos/|test_packaging|benchmarks/test_jobs_bench|benchmarks/test_bench"
    r"|contract/test_job_store_laws|acceptance/test_join_group|kafka_clients/|security/test_fuzz_scopes"
    r"|bad_input/test_openapi_schemathesis|properties/)"
)


def is_late(nodeid: str) -> bool:
    """Return False iff a test is to begin before the others."""
    return FIRST.match(nodeid) is None


def scope_of(nodeid: str) -> str:
    """Return what all tests that run in the process of this one have in common."""
    for pattern in TOGETHER:
        if found := pattern.match(nodeid):
            return "".join(found.groups())
    return nodeid


class TogetherScheduling(LoadScopeScheduling):  # type: ignore[misc] # no types, see above
    """Hands out test by test to whoever is free, but tests of TOGETHER to one process."""

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)
