"""kvopt."""
