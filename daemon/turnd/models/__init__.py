"""Adapters of models: each turns canonical messages into one API, and its stream into canonical events."""
