"""The credentials of QStash's development server: everybody knows them, so they serve on one's own machine alone."""

from typing import Final

DEVELOPMENT_TOKEN: Final = "eyJVc2VySUQiOiJkZWZhdWx0VXNlciIsIlBhc3N3b3JkIjoiZGVmYXVsdFBhc3N3b3JkIn0="  # noqa: S105 - public
DEVELOPMENT_KEYS: Final = ("sig_7kYjw48mhY7kAjqNGcy6cr29RJ6r", "sig_5ZB6DVzB1wjE8S6rZ7eenA8Pdnhs")
"""By these the official JavaScript client recognises a development server that runs already."""

PUBLIC_KEYS: Final = frozenset(
    {
        *DEVELOPMENT_KEYS,
        "sig_7GVPjvuwsfqF65iC8fSrs1dfYruM",
        "sig_5NoELc3EFnZn4DVS5bDs2Nk4b7Ua",
        "sig_6jWGaWRxHsw4vMSPJprXadyvrybF",
        "sig_7qHbvhmahe5GwfePDiS5Lg3pi6Qx",
        "sig_5T8FcSsynBjn9mMLBsXhpacRovJf",
        "sig_7GFR4YaDshFcqsxWRZpRB161jguD",
        "sig_7RvLjqfZBvP5KEUimQCE1pvpLuou",
        "sig_7W3ZNbfKWk5NWwEs3U4ixuQ7fxwE",
    }
)
"""Every key that the provider's documents print (howto/local-development)."""
