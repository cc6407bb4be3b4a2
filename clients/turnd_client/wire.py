"""What both ends of the socket must agree on."""

from __future__ import annotations

from collections.abc import Sequence

PROTOCOL = 1
"""The major version of `turnd.v1` that this client speaks."""

MAX_MESSAGE_BYTES = 16 * 1024 * 1024
MAX_METADATA_BYTES = 64 * 1024

CHANNEL_OPTIONS: Sequence[tuple[str, int]] = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_metadata_size", MAX_METADATA_BYTES),
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
    # Of a local daemon that comes back; the default waits a second before it even tries again.
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # No transport pings (G04): the kernel closes a Unix socket whose other end died, and a daemon that lives
    # and does not answer is told by missing heartbeats, which a client that was stopped for a while
    # survives (C07).
    ("grpc.keepalive_time_ms", 2**31 - 1),
    ("grpc.keepalive_permit_without_calls", 0),
)
"""Sizes in bytes, times in milliseconds."""
