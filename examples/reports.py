"""A page whose buttons start exports: jobs with progress and a result, which the page polls, and a nightly cron.

    uvicorn examples.reports:app                # then open http://127.0.0.1:8000

Click twice: a customer has one export of a kind at a time. Cancel one. Kill the server with -9 in the middle of one and
start it again: half a minute later it goes on, the CSV with the page that was next. The last customer has no books, so
that export is tried three times and given up. To have another process do the work:

    A2_ROLE=web uvicorn examples.reports:app    # now exports wait
    a2 run examples.reports:a2                  # until this runs beside it, once or several times
"""

import logging
import time
from dataclasses import asdict
from datetime import datetime, timedelta
from html import escape
from string import Template
from typing import Any, Literal

import anyio
from fastapi import FastAPI, HTTPException
from fastapi.responses import HTMLResponse

from a2asgi import A2, A2Middleware, FailedJob, Job, JobContext, SyncJobContext

PAGES = {"Ada & Sons": 12, "Bits <Ltd>": 40}
CUSTOMERS = [*PAGES, "Nobody"]
Kind = Literal["csv", "pdf"]


class Books:
    """What exports read, or would: here a page only takes its time."""

    async def read(self, _customer: str, _page: int) -> None:
        """Query a database."""
        await anyio.sleep(0.25)

    def draw(self, _customer: str, _page: int) -> None:
        """Keep a processor busy, and the thread that it is on."""
        time.sleep(0.25)


a2 = A2(dependencies=Books())


def tell_support(failed: FailedJob) -> None:
    """Have a person look at it. This is called once, when an export is given up."""
    logging.getLogger("reports").error("%s of %s: %s", failed.name, failed.arguments["customer"], failed.message)


def pages_of(customer: str) -> int:
    """How many pages there are of a customer. Raises LookupError."""
    if customer not in PAGES:
        raise LookupError(f"there are no books of {customer}")
    return PAGES[customer]


@a2.job(name="CSV", retries=2, backoff="2s", on_failed=tell_support)
async def export_csv(ctx: JobContext, customer: str) -> str:
    """Read page after page. Where a server was killed, the next one goes on from the last page that was noted."""
    total = pages_of(customer)
    first = 1 if ctx.last_progress is None else int(ctx.last_progress.done) + 1
    for page in range(first, total + 1):
        await ctx.dependencies.read(customer, page)
        await ctx.progress(page, total, f"page {page} of {total}")
    return f"{customer}.csv, {50 * total} rows"


@a2.job(name="PDF", retries=2, backoff="2s", concurrency=2, on_failed=tell_support)
def export_pdf(ctx: SyncJobContext, customer: str) -> str:
    """Draw page after page. A plain function runs on a thread: of these, two at a time."""
    total = pages_of(customer)
    for page in range(1, total + 1):
        ctx.dependencies.draw(customer, page)
        ctx.progress(page, total, f"page {page} of {total}")
    return f"{customer}.pdf, {total} pages"


EXPORTS: dict[Kind, Job[[str], Any]] = {"csv": export_csv, "pdf": export_pdf}


@a2.cron("0 3 * * *", tz="Europe/Berlin")
async def nightly(slot: datetime) -> str:
    """Have everything exported by the time that people come to work."""
    for customer in PAGES:
        await export_csv.enqueue(customer, dedupe_key=customer)
    return f"{len(PAGES)} exports for {slot:%A}"


api = FastAPI()


@api.post("/exports/{kind}")
async def start(kind: Kind, customer: str) -> dict[str, str]:
    """Start an export, or find the one that is under way."""
    return {"id": await EXPORTS[kind].enqueue(customer, dedupe_key=customer)}


@api.get("/exports/{kind}/{export_id}")
async def show(kind: Kind, export_id: str) -> dict[str, object]:
    """Tell where an export stands."""
    if (status := await EXPORTS[kind].status(export_id)) is None:
        raise HTTPException(404, "no such export, or it was too long ago")
    return {"over": status.state.is_finished, **asdict(status)}


@api.delete("/exports/{kind}/{export_id}")
async def cancel(kind: Kind, export_id: str) -> dict[str, bool]:
    """Call an export off, unless it is over."""
    return {"cancelled": await EXPORTS[kind].cancel(export_id, "on the page")}


@api.get("/", response_class=HTMLResponse)
async def page() -> str:
    """Show the buttons, and what the cron did last and does next."""
    slots = nightly.next(3)
    run = await nightly.status(slots[0] - timedelta(days=1))  # as Berlin's clocks count
    last = "it has not run" if run is None else f"{run.state}: {run.result or run.error or ''}"
    rows = [ROW.substitute(kind=kind, customer=escape(customer)) for customer in CUSTOMERS for kind in EXPORTS]
    following = [f"<li>{slot:%A %d %B, %H:%M %Z}" for slot in slots]
    return PAGE.substitute(rows="\n".join(rows), last=escape(last), following="\n".join(following))


ROW = Template('<tr data-kind="$kind" data-customer="$customer"><td>$customer<td><button>Export $kind</button>')
PAGE = Template("""<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Exports</title>
<style>body { font: 1rem system-ui; margin: 2rem } td { padding: .2rem .6rem }</style>
<h1>Exports</h1>
<table>
$rows
</table>
<h2>Every night</h2>
<p>Last night: $last. It runs next:
<ul>
$following
</ul>
<script>
const ask = async (url, method) => (await fetch(url, {method})).json();
for (const row of document.querySelectorAll("tr")) {
  const make = name => row.insertCell().appendChild(document.createElement(name));
  const url = "/exports/" + row.dataset.kind, bar = make("progress"), off = make("button"), note = make("span");
  off.textContent = "Cancel";
  bar.hidden = off.hidden = true;
  row.querySelector("button").onclick = async () => {
    const {id} = await ask(url + "?customer=" + encodeURIComponent(row.dataset.customer), "POST");
    off.onclick = () => ask(url + "/" + id, "DELETE");
    for (let job = {}; !job.over; await new Promise(resume => setTimeout(resume, 250))) {
      job = await ask(url + "/" + id).catch(() => ({state: "waiting for the server"}));
      bar.hidden = off.hidden = job.over;
      if (job.progress) [bar.max, bar.value] = [job.progress.total, job.progress.done];
      const detail = job.result || job.error || job.progress?.note;
      note.textContent = detail ? job.state + ": " + detail : job.state;
    }
    bar.removeAttribute("value");
  };
}
</script>
""")

app = A2Middleware(api, a2)
