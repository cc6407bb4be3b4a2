"""The public contract: generated stubs, and the one translator between events and their JSON form."""
