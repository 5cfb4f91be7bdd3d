"""A started task is held until it ends, heard when it dies, and gone after close."""

import asyncio
import gc
import logging
import weakref

import pytest

from paywitness import tasks as tasks_module
from paywitness.tasks import TaskRefused, Tasks


@pytest.fixture
def tasks() -> Tasks:
    return Tasks()


async def test_a_task_runs_under_its_name_and_gives_its_result(tasks):
    async def work():
        return 42

    task = tasks.start(work(), "sweep")
    assert task.get_name() == "sweep"
    assert await task == 42


async def test_a_task_that_nobody_else_holds_survives_the_garbage_collector(tasks):
    waiting_for = []

    async def work():
        answer = asyncio.get_running_loop().create_future()
        waiting_for.append(weakref.ref(answer))
        await answer

    tasks.start(work(), "forgotten")
    await asyncio.sleep(0)
    gc.collect()
    answer = waiting_for[0]()
    assert answer is not None, "task and future held only each other, and were collected half-way"
    answer.set_result(None)
    await tasks.close(grace_s=5)


async def test_an_ended_task_is_no_longer_held(tasks):
    await tasks.start(asyncio.sleep(0), "short")
    await asyncio.sleep(0)
    assert len(tasks) == 0


async def test_a_death_is_logged_by_name_class_and_place_without_its_message(tasks, caplog):
    async def die():
        raise ValueError("card 4242424242424242")

    task = tasks.start(die(), "resolver")
    await asyncio.wait([task])
    await asyncio.sleep(0)
    (record,) = caplog.records
    assert record.name == "paywitness.tasks"
    assert record.levelno == logging.ERROR
    assert "task resolver died of ValueError at test_tasks.py:" in record.getMessage()
    assert "4242424242424242" not in caplog.text


async def test_a_cancelled_task_is_no_death(tasks, caplog):
    task = tasks.start(asyncio.sleep(60), "waiting")
    task.cancel()
    await asyncio.wait([task])
    await asyncio.sleep(0)
    assert len(tasks) == 0
    assert caplog.records == []


async def test_a_task_beyond_the_limit_is_refused_and_nothing_of_it_runs():
    tasks = Tasks(limit=1)
    ran = []

    async def work():
        ran.append("it")

    first = tasks.start(asyncio.sleep(60), "first")
    with pytest.raises(TaskRefused, match="second: 1 tasks run already"):
        tasks.start(work(), "second")
    first.cancel()
    await asyncio.wait([first])
    await asyncio.sleep(0)
    await tasks.start(work(), "third")
    assert ran == ["it"]


async def test_close_waits_for_what_ends_within_the_grace(tasks, caplog):
    ended = []

    async def work():
        await asyncio.sleep(0.02)
        ended.append("first")
        tasks.start(follow_up(), "second")

    async def follow_up():
        await asyncio.sleep(0.02)
        ended.append("second")

    tasks.start(work(), "first")
    await tasks.close(grace_s=30)
    assert ended == ["first", "second"]
    assert caplog.records == []


async def test_close_cancels_what_outlives_the_grace_and_waits_for_its_last_words(tasks):
    said = []

    async def work():
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.01)
            said.append("recorded")

    tasks.start(work(), "long")
    await asyncio.sleep(0)
    await tasks.close(grace_s=0)
    assert said == ["recorded"]
    assert len(tasks) == 0


async def test_after_close_nothing_starts(tasks):
    await tasks.close(grace_s=0)
    with pytest.raises(TaskRefused, match="late: closed"):
        tasks.start(asyncio.sleep(0), "late")


async def test_a_task_that_closes_its_own_owner_does_not_wait_for_itself(tasks):
    task = tasks.start(tasks.close(grace_s=30), "last")
    await asyncio.wait_for(task, timeout=5)


async def test_a_task_that_ignores_its_cancellation_is_named_and_left(tasks, caplog, monkeypatch):
    monkeypatch.setattr(tasks_module, "_CANCEL_GRACE_S", 0.01)
    may_end = asyncio.Event()

    async def stubborn():
        while not may_end.is_set():
            try:
                await may_end.wait()
            except asyncio.CancelledError:
                continue

    task = tasks.start(stubborn(), "stubborn")
    await asyncio.sleep(0)
    await tasks.close(grace_s=0)
    assert "task stubborn does not end, though cancelled" in caplog.text
    may_end.set()
    await task


async def test_loops_without_an_end_are_stopped_at_once_and_nothing_starts_after() -> None:
    tasks = Tasks()
    endless = tasks.start(asyncio.Event().wait(), "endless")
    await asyncio.sleep(0)
    await tasks.stop()
    assert endless.cancelled()
    with pytest.raises(TaskRefused):
        tasks.start(asyncio.Event().wait(), "late")
