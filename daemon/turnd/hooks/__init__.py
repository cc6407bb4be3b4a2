"""The hook chain: who looks at, changes or vetoes what passes the points of the loop. Implements the port Hooks."""
