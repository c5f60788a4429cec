"""Property tests draw the same examples in every run."""

from hypothesis import settings

settings.register_profile("kvopt", derandomize=True, deadline=None, max_examples=60, database=None)
settings.load_profile("kvopt")
