"""The runner of workers: on time, nothing lost, nothing left behind."""

import math
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from opt.solvers.worker import Outcome, run_apart

THIS = "test_worker"


def add(tell, a, b):
    return a + b


def talk(tell, count, pause):
    for k in range(count):
        tell(k)
        time.sleep(pause)
    return count


def chatter(tell):
    sys.stdout.write("stray python line\n")
    sys.stderr.write("stray error line\n")
    os.write(1, b"stray bytes from below\n")
    sys.stdout.flush()
    return "quiet"


def die(tell, how):
    tell("last words")
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "aborted":
        os.write(2, b"terminate called after throwing an instance of 'std::bad_alloc'\n")
        os.abort()
    if how == "left":
        os._exit(3)
    if how == "memory":
        raise MemoryError
    raise RuntimeError("a fault")


def refuse(tell):
    raise ValueError("threads = 0: must be at least 1")


def who(tell):
    return os.getpid()


def deaf(tell, seconds):
    """Ignores every signal that can be ignored."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    tell(os.getpid())
    time.sleep(seconds)


def unspeakable(tell):
    return lambda: None


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def gone_within(pid, seconds):
    until = time.monotonic() + seconds
    while alive(pid) and time.monotonic() < until:
        time.sleep(0.05)
    return not alive(pid)


def test_a_result_comes_back():
    assert run_apart(add, 2, 3) == Outcome("done", 5)


def test_messages_come_in_order_and_before_the_result():
    said = []
    assert run_apart(talk, 50, 0, heard=said.append).result == 50
    assert said == list(range(50))


def test_the_deadline_ends_a_deaf_worker_and_keeps_what_it_said():
    said, begun = [], time.monotonic()
    outcome = run_apart(deaf, 60, deadline=begun + 2, heard=said.append)
    assert outcome.ended == "time_limit"
    assert 1.9 < time.monotonic() - begun < 10
    assert len(said) == 1
    assert not alive(said[0])  # reaped, too: a zombie would still be there


def test_a_deadline_in_the_past_starts_nothing_that_stays():
    assert run_apart(add, 1, 1, deadline=time.monotonic() - 1).ended == "time_limit"
    assert run_apart(add, 1, 1, deadline=math.inf).result == 2


@pytest.mark.parametrize(
    ("how", "error"),
    [
        ("killed", r"ended by SIGKILL \(out of memory\?\) before it had an answer$"),
        ("aborted", r"ended by SIGABRT before it had an answer: terminate called .*bad_alloc"),
        ("left", "ended with exit code 3"),
        ("memory", "MemoryError"),
        ("fault", "RuntimeError: a fault"),
    ],
)
def test_a_death_is_named_and_loses_nothing(how, error):
    said = []
    outcome = run_apart(die, how, heard=said.append)
    assert (outcome.ended, said) == ("died", ["last words"])
    assert re.search(error, outcome.error)
    assert run_apart(add, 1, 1).result == 2  # the next task has a worker again


def test_a_value_error_stays_one():
    with pytest.raises(ValueError, match="threads = 0: must be at least 1"):
        run_apart(refuse)


def test_what_cannot_be_sent_is_an_error_and_no_hang():
    assert "pickle" in run_apart(unspeakable).error
    with pytest.raises(Exception, match="pickle"):
        run_apart(lambda tell: None)


def test_a_worker_serves_many_tasks_and_two_threads_have_two():
    first = run_apart(who).result
    assert run_apart(who).result == first != os.getpid()
    found = []
    threads = [threading.Thread(target=lambda: found.append(run_apart(talk, 5, 0.05).result)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [5, 5]


def test_a_listener_that_fails_ends_the_worker():
    pids = []

    def listen(message):
        pids.append(message)
        raise BrokenPipeError("the terminal is gone")

    with pytest.raises(BrokenPipeError):
        run_apart(deaf, 60, heard=listen)
    assert not alive(pids[0])


def script(body, **options):
    """Run a script without a main guard, as people write them, in a session of its own."""
    code = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\nfrom opt.solvers.worker import run_apart\n{body}"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, "-W", "error", "-"], start_new_session=True, **pipes, **options)
    process.stdin.write(code)
    process.stdin.close()
    process.stdin = None
    return process


def test_stray_output_stays_away_from_ours():
    process = script(f"from {THIS} import chatter\nprint(run_apart(chatter).result)")
    assert process.communicate(timeout=60) == ("quiet\n", "")


def test_ctrl_c_reaches_us_alone():
    body = f"from {THIS} import deaf\nprint(run_apart(deaf, 60, heard=lambda pid: print(pid, flush=True)).ended)"
    process = script(body)
    pid = int(process.stdout.readline())
    os.killpg(process.pid, signal.SIGINT)
    said, errors = process.communicate(timeout=60)
    assert (said, errors) == ("interrupted\n", "")
    assert not alive(pid)


def test_a_worker_does_not_outlive_us():
    """Even when we are killed and can clean up nothing."""
    process = script(f"from {THIS} import deaf\nrun_apart(deaf, 60, heard=lambda pid: print(pid, flush=True))")
    pid = int(process.stdout.readline())
    process.kill()
    process.communicate(timeout=60)
    assert gone_within(pid, 10)
