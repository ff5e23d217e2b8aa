"""Kept seeds: worlds that once broke a law, each with what it found, run again by every test run."""

KEPT: dict[int, str] = {
    20: "a timer behind a provider came early, published by a process whose clock was ahead",
    685: "a retry behind a provider waited for the watchdog, since another lane's handler kept its drain busy",
    1341: "a wake-up was folded into one that a process whose clock was ahead had published for a second to come",
    360516547: "a retry behind a provider waited for another process at work in another lane of its session",
    908132533: "a process whose clock was set back by two hours looked for no wake-up until it was that time again",
    904206713: "a handler was stopped as if its claim were lost: one renewal failed after a clock was set on",
    556053839: "what a drain raised beside a crash was taken for the end of its process: a fault of the simulation",
    692874223: "a second delivery was blamed for what the provider lost after the first: a fault of the simulation",
    18113305: "a function claimed for no time at all, as its deadline had passed on the way to the store",
    99494361: "a claim that only seemed lost, as its renewal's answer was, was not given back",
    311224301: "a simulated process that was told to stop as it started was asked for more: a fault of the simulation",
    89349824: "a repeated dispatch made a session due again in the store alone: its wake-up was folded into the first",
}
