"""The pytest plugin: an `a2_world` fixture for whatever A2 the test module's own `a2` fixture returns."""

from collections.abc import AsyncIterator

import pytest

from a2asgi.app import A2
from a2asgi.testing.world import World


@pytest.fixture
async def a2_world(a2: A2) -> AsyncIterator[World]:
    """A test world. Define a fixture `a2` that returns your A2, and run async tests with the anyio plugin."""
    async with a2.testing() as world:
        yield world
