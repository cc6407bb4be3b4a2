"""The loop: session life, Turn, and the eighteen lines of a Step. It sees the world through ports alone."""
