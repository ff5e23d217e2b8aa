"""The test kit: a world on a manual clock, and the conformance suite for stores."""

from a2asgi.testing.store_suite import StoreCheckFailed, check_store
from a2asgi.testing.world import Crashed, ManualClock, World

__all__ = ["Crashed", "ManualClock", "StoreCheckFailed", "World", "check_store"]
