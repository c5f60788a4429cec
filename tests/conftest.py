"""Property tests draw the same examples in every run."""

import signal

from hypothesis import settings

settings.register_profile("kvopt", derandomize=True, deadline=None, max_examples=60, database=None)
settings.load_profile("kvopt")

# A test run in the background of a script ignores Ctrl-C, and so would every command that a test starts and interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)
