"""Kept seeds: worlds that once broke a law, each with what it found, run again by every test run."""

KEPT: dict[int, str] = {
    20: "a timer behind a provider came early, published by a process whose clock was ahead",
    685: "a retry behind a provider waited for the watchdog, since another lane's handler kept its drain busy",
    1341: "a wake-up was folded into one that a process whose clock was ahead had published for a second to come",
    311224301: "a simulated process that was told to stop as it started was asked for more: a fault of the simulation",
}
