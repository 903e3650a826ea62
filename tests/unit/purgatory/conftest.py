"""Virtual time for every test of this folder."""

from tests.virtual_time import anyio_backend  # noqa: F401 # a fixture
