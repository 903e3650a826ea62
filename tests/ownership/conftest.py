"""A real server for the tests of leases."""

from collections.abc import Iterator

import pytest

from tests.valkey_server import ValkeyServer


@pytest.fixture(scope="session")
def lease_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ValkeyServer]:
    """A Valkey for all tests."""
    with ValkeyServer(tmp_path_factory.mktemp("leases")) as server:
        yield server
