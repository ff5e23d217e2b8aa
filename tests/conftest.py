"""What every test shares."""

import os

from hypothesis import settings

settings.register_profile("here", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)  # the same examples each time: red means changed
settings.load_profile("ci" if os.environ.get("CI") else "here")
