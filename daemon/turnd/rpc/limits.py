"""Sizes, times and options of the client socket; the client's side is `turnd_client.wire`."""

from __future__ import annotations

from collections.abc import Sequence

MAX_MESSAGE_BYTES = 16 * 1024 * 1024
MAX_METADATA_BYTES = 64 * 1024

MAX_ERROR_TEXT_BYTES = 4096
"""Other implementations take 8 KiB of metadata in all, error details included (G05)."""

MAX_ERROR_DETAILS_BYTES = 2048

HEARTBEAT_S = 15.0
"""An Attach stream is never silent for longer."""

STUCK_CLIENT_S = 300.0
"""A client that does not take one message for so long is disconnected (RPC-02)."""

CLEANUP_S = 10.0
"""How long a stop waits for handlers to clean up after the transport has ended (G03)."""

SERVER_OPTIONS: Sequence[tuple[str, int]] = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_metadata_size", MAX_METADATA_BYTES),
    ("grpc.max_concurrent_streams", 1000),
    # A second server on the same path would take the clients of the first (V03); the lock prevents it before.
    ("grpc.so_reuseport", 0),
    # Clients in any language may ping as they like on an idle stream (G04). The daemon itself does not ping:
    # the kernel closes the socket of a client that died, and one that is stopped for a minute must not be
    # taken for dead (C07).
    ("grpc.keepalive_time_ms", 2**31 - 1),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 1),
    ("grpc.http2.max_ping_strikes", 0),
)
"""Sizes in bytes, times in milliseconds."""
