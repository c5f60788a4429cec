"""`python -m opt.cli`: the same as `kvopt`."""

from __future__ import annotations

from opt.cli import main

main()
