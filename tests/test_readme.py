"""The README's code runs as it stands there."""

import re
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import anyio
import httpx
import pytest

README = (Path(__file__).parent.parent / "README.md").read_text()
BLOCKS = dict(re.findall(r"```python\n# (\w+)\.py\b[^\n]*\n(.*?)```", README, re.DOTALL))


@pytest.fixture
def readme_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, ModuleType]]:
    """The README's blocks as files in an empty folder, imported."""
    for name, source in BLOCKS.items():
        (tmp_path / f"{name}.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield {name: import_module(name) for name in BLOCKS}
    for name in BLOCKS:
        del sys.modules[name]


def test_the_readme_has_the_app_and_its_test() -> None:
    assert ["app", "jobs", "test_app"] == list(BLOCKS)


async def test_the_quickstart_answers_a_request_twice(readme_modules: dict[str, ModuleType]) -> None:
    """The same order placed twice is one event, and reserving it asked for the timer."""
    quickstart = readme_modules["app"]
    async with quickstart.a2.testing() as world:
        transport = httpx.ASGITransport(quickstart.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            answers = [(await client.post("/orders/o1", json={"sku": "tea", "quantity": 2})).json() for _ in range(2)]
        await world.settle()
    assert [{"new": True, "seq": 1}, {"new": False, "seq": 1}] == answers


async def test_the_test_in_the_readme_passes(readme_modules: dict[str, ModuleType]) -> None:
    await readme_modules["test_app"].test_an_unpaid_order_expires()


async def test_the_jobs_in_the_readme_run(readme_modules: dict[str, ModuleType]) -> None:
    """Nine o'clock in Berlin, the first workday of the world: the cron enqueues the job, which tells its progress."""
    jobs = readme_modules["jobs"]
    async with jobs.a2.testing() as world:
        assert ["2026-01-01T09:00:00+01:00"] == [slot.isoformat() for slot in jobs.daily_report.next()]
        await world.advance("8h")
        job_id = await jobs.export.enqueue("all", dedupe_key="again")
        await world.settle()
        assert [2] == [session.last_seq for session in await world.store.sessions("cron:daily_report")]
        assert 2 == len(await world.store.sessions("job:export"))
        status = await jobs.export.status(job_id)
    assert ("succeeded", "all.csv", 2, 3) == (
        status.state,
        status.result,
        status.progress.done,
        status.progress.total,
    )


def test_the_quickstart_runs_without_any_configuration(readme_modules: dict[str, ModuleType]) -> None:
    """Development needs no store: the file is made in the working directory."""
    quickstart = readme_modules["app"]

    async def place() -> None:
        async with quickstart.a2:
            await quickstart.orders.session("o1").append(quickstart.Placed(sku="tea", quantity=2), wait=True)

    anyio.run(place)
    assert Path(".a2/a2.db").exists()
