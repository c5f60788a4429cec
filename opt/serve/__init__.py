"""Serving systems on the clock: schedulers that are more than a rule for the next step."""
