"""The exports in a world of their own: over HTTP as the page asks for them, with their progress while they run."""

import logging
from collections.abc import AsyncIterator, Iterator
from functools import partial
from threading import Semaphore
from typing import Any

import anyio
import anyio.to_thread
import httpx
import pytest

from a2asgi.testing import World
from examples.reports import PAGE, PAGES, Books, a2, app

ADA = "Ada & Sons"
PATIENCE_S = 10  # a test that hangs is a test that fails


class SlowBooks(Books):
    """A page to read takes a second on the world's clock; one to draw, until the test lets it."""

    def __init__(self) -> None:
        self.world: World | None = None
        self.read_pages: list[int] = []
        self.asked = Semaphore(0)
        self.drawn = Semaphore(0)

    async def read(self, _customer: str, page: int) -> None:
        self.read_pages.append(page)
        assert self.world is not None
        await self.world.sleep("1s")

    def draw(self, _customer: str, _page: int) -> None:
        self.asked.release()
        assert self.drawn.acquire(timeout=PATIENCE_S)


@pytest.fixture
def books() -> SlowBooks:
    return SlowBooks()


@pytest.fixture
async def world(books: SlowBooks) -> AsyncIterator[World]:
    async with a2.testing(dependencies=books) as world:
        books.world = world
        yield world


@pytest.fixture
async def client(world: World) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://reports") as client:
        yield client


@pytest.fixture
def told_support(caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
    """What people were told to look at, once the test is over."""
    told: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: told.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("reports").addHandler(handler)
    yield told
    logging.getLogger("reports").removeHandler(handler)


async def click(client: httpx.AsyncClient, kind: str = "csv", customer: str = ADA) -> str:
    """The export's path."""
    answer = (await client.post(f"/exports/{kind}", params={"customer": customer})).raise_for_status().json()
    return f"/exports/{kind}/{answer['id']}"


async def poll(client: httpx.AsyncClient, export: str) -> dict[str, Any]:
    answer: dict[str, Any] = (await client.get(export)).raise_for_status().json()
    return answer


async def bar(client: httpx.AsyncClient, export: str) -> tuple[str, float, float, str]:
    """What the page shows of an export under way."""
    told = await poll(client, export)
    progress = told["progress"]
    return told["state"], progress["done"], progress["total"], progress["note"]


async def test_an_export_tells_how_far_it_is_and_then_its_result(world: World, client: httpx.AsyncClient) -> None:
    export = await click(client)
    told = await poll(client, export)
    assert ("queued", None, False) == (told["state"], told["progress"], told["over"])
    await world.advance("1s")
    assert ("running", 1, 12, "page 1 of 12") == await bar(client, export)
    await world.advance("10s")
    assert ("running", 11, 12, "page 11 of 12") == await bar(client, export)
    await world.advance("1s")
    assert ("succeeded", 12, 12, "page 12 of 12") == await bar(client, export)
    told = await poll(client, export)
    assert ("Ada & Sons.csv, 600 rows", None, True) == (told["result"], told["error"], told["over"])


async def test_an_export_on_a_thread_tells_how_far_it_is(
    world: World, client: httpx.AsyncClient, books: SlowBooks
) -> None:
    export = await click(client, "pdf")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(world.settle)
        for page in range(1, 13):
            assert await anyio.to_thread.run_sync(partial(books.asked.acquire, timeout=PATIENCE_S))
            if page > 1:
                assert ("running", page - 1, 12, f"page {page - 1} of 12") == await bar(client, export)
            books.drawn.release()
    told = await poll(client, export)
    assert ("succeeded", "Ada & Sons.pdf, 12 pages") == (told["state"], told["result"])


async def test_many_clicks_are_one_export(world: World, client: httpx.AsyncClient, books: SlowBooks) -> None:
    exports: set[str] = set()

    async def click_once() -> None:
        exports.add(await click(client))

    async with anyio.create_task_group() as tasks:
        for _ in range(10):
            tasks.start_soon(click_once)
    await world.advance("3s")
    await click_once()
    await world.advance("1m")
    assert 1 == len(exports)
    assert list(range(1, 13)) == books.read_pages


async def test_another_customer_another_kind_and_another_time_are_other_exports(
    world: World, client: httpx.AsyncClient
) -> None:
    first = await click(client)
    others = {first, await click(client, customer="Bits <Ltd>"), (await click(client, "pdf")).replace("pdf", "csv")}
    await client.delete(first)
    others.add(await click(client))
    assert 4 == len(others)


async def test_a_cancelled_export_reads_no_further(world: World, client: httpx.AsyncClient, books: SlowBooks) -> None:
    export = await click(client)
    await world.advance("2s")
    assert {"cancelled": True} == (await client.delete(export)).json()
    await world.advance("1m")
    told = await poll(client, export)
    assert ("cancelled", "on the page", None, True) == (told["state"], told["error"], told["result"], told["over"])
    assert [1, 2, 3] == books.read_pages
    assert {"cancelled": False} == (await client.delete(export)).json()


async def test_an_export_that_cannot_succeed_is_tried_three_times_then_people_are_told(
    world: World, client: httpx.AsyncClient, told_support: list[str]
) -> None:
    export = await click(client, customer="Nobody")
    await world.advance("3s")
    told = await poll(client, export)
    assert ("retrying", 2, False) == (told["state"], told["attempt"], told["over"])
    assert [] == told_support
    await world.advance("1s")
    told = await poll(client, export)
    assert ("failed", "LookupError: there are no books of Nobody") == (told["state"], told["error"])
    await world.advance("1h")
    assert ["CSV of Nobody: there are no books of Nobody"] == told_support


async def test_an_export_whose_server_died_goes_on_after_the_last_page_it_noted(
    world: World, client: httpx.AsyncClient, books: SlowBooks
) -> None:
    export = await click(client)
    await world.advance("5s")
    world.crash_after("claim")
    await click(client, customer="Nobody")
    await world.advance("1m")
    assert "succeeded" == (await poll(client, export))["state"]
    assert [*range(1, 7), *range(6, 13)] == books.read_pages


async def test_the_page_shows_what_the_cron_does_next_as_berlins_clocks_say(
    world: World, client: httpx.AsyncClient
) -> None:
    html = (await client.get("/")).raise_for_status().text
    assert "Last night: it has not run." in html
    slots = ["Thursday 01 January, 03:00 CET", "Friday 02 January, 03:00 CET", "Saturday 03 January, 03:00 CET"]
    assert [f"<li>{slot}" for slot in slots] == [line for line in html.splitlines() if line.startswith("<li>")]


async def test_the_page_shows_what_the_cron_did_in_the_night_before(world: World, client: httpx.AsyncClient) -> None:
    await world.advance("2h")
    assert "Last night: succeeded: 2 exports for Thursday." in (await client.get("/")).text
    await world.advance("23h")
    assert "Last night: succeeded: 2 exports for Thursday." in (await client.get("/")).text
    await world.advance("86d")  # the night in which it is three o'clock an hour early
    html = (await client.get("/")).text
    assert "Last night: succeeded: 2 exports for Sunday." in html
    assert "<li>Monday 30 March, 03:00 CEST" in html


async def test_an_export_that_the_cron_started_is_the_one_that_a_click_finds(
    world: World, client: httpx.AsyncClient, books: SlowBooks
) -> None:
    await world.advance("2h")
    found = await click(client)
    await world.advance("1s")
    assert ("running", 1, 12, "page 1 of 12") == await bar(client, found)
    await world.advance("1m")
    assert sum(PAGES.values()) == len(books.read_pages)


async def test_names_stand_in_the_page_as_text(world: World, client: httpx.AsyncClient) -> None:
    html = (await client.get("/")).text
    assert 4 == html.count("Ada &amp; Sons")
    assert 4 == html.count("Bits &lt;Ltd&gt;")
    assert (0, 0) == (html.count("& Sons"), html.count("<Ltd"))
    assert "innerHTML" not in PAGE.template


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/exports/csv/unknown", 404),
        ("GET", "/exports/doc/unknown", 422),
        ("POST", "/exports/csv", 422),
        ("POST", "/exports/doc?customer=Nobody", 422),
    ],
)
async def test_what_does_not_exist_is_not_found(
    world: World, client: httpx.AsyncClient, method: str, path: str, status: int
) -> None:
    assert status == (await client.request(method, path)).status_code
    assert [] == await world.store.sessions()
