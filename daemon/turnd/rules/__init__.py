"""The pure heart: rules without I/O, clock, async or logging."""
