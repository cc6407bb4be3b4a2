"""The public API over a Unix socket: thin servicers over `sessions`; it owns transport, access and error forms."""
