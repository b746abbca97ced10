"""A session serves every cell of a notebook, whichever opened it, and says nothing that was not asked for."""

import pytest

from tests.notebook.driver import Notebook

pytestmark = pytest.mark.notebook


def test_a_session_opened_in_one_cell_serves_the_next(notebook: Notebook) -> None:
    assert notebook.run("r = await session.generate(**EXPECTED); print(list(r.token_ids) == GOLDEN)") == "True\n"
    cell = "async for piece in session.stream(**EXPECTED): print(*piece.token_ids, end=' ')"
    assert notebook.run(f"{cell}\nprint(*GOLDEN)").split()[:24] == notebook.run("print(*GOLDEN)").split()


def test_text_goes_in_and_comes_out(notebook: Notebook) -> None:
    notebook.run("text = ' '.join(f'w{token}' for token in PROMPT)")
    answer = notebook.run("print(await session.generate(text, max_tokens=24, ignore_eos=True))")
    pieces = notebook.run("async for p in session.stream(text, max_tokens=24, ignore_eos=True): print(p, end='')")
    assert answer.strip() == pieces == notebook.run("print(''.join(f'w{token}' for token in GOLDEN))").strip()


def test_handles_and_tasks_of_one_cell_are_awaited_in_another(notebook: Notebook) -> None:
    notebook.run("handles = [session.submit(**EXPECTED) for _ in range(3)]")
    notebook.run("task = asyncio.create_task(session.generate(**EXPECTED))")
    notebook.run("stream = session.stream(**EXPECTED); first = await anext(stream)")
    assert notebook.run("print([list((await handle).token_ids) == GOLDEN for handle in handles])") == f"{[True] * 3}\n"
    assert notebook.run("print(list((await task).token_ids) == GOLDEN)") == "True\n"
    assert notebook.run("print(len([p async for p in stream]), handles[0].result().token_ids[0])").startswith("23 ")


def test_blocking_twins_work_where_the_loop_already_runs(notebook: Notebook) -> None:
    assert notebook.run("print(list(session.generate_sync(**EXPECTED).token_ids) == GOLDEN)") == "True\n"
    assert notebook.run("print(len(list(session.stream_sync(**EXPECTED))))") == "24\n"
    notebook.run(
        "import signal; await asyncio.sleep(0); handler = signal.getsignal(signal.SIGINT)\n"
        "assert list(session.generate_sync(**EXPECTED).token_ids) == GOLDEN\n"
        "assert signal.getsignal(signal.SIGINT) == handler"
    )
    notebook.run("blocking = open_tiny(precompile='lazy', progress=False).wait()")
    assert notebook.run("blocking.close_sync(); print(blocking)").endswith("rekindle.open()>\n")


def test_progress_is_drawn_as_outputs_or_not_at_all(notebook: Notebook) -> None:
    for progress in (False, True):
        cell = notebook.start(f"async with open_tiny(progress={progress}, precompile='lazy'): pass").end()
        assert (cell.error, cell.stdout, cell.stderr) == ("", "", "")
        assert bool(cell.displays) == progress


def test_errors_of_a_call_leave_the_session_as_it_was(notebook: Notebook) -> None:
    cell = notebook.start("await session.generate('')").end()
    assert (cell.error, cell.stdout, cell.stderr) == ("InvalidRequest", "", "")
    assert notebook.run("print(list((await session.generate(**EXPECTED)).token_ids) == GOLDEN)") == "True\n"
