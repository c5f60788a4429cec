"""Exact solvers: a layered search where few requests run together, time-indexed models where many do."""
