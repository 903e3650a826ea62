"""A purgatory without an event loop."""

import pytest

from purgatory.operations import DelayedOperationPurgatory
from tests.unit.operations.noted_operation import MakeCore


@pytest.fixture
def core(make_core: MakeCore) -> DelayedOperationPurgatory:
    return make_core()
