"""Tests for session stores that programs bring."""

from .session_store_conformance import (
    run_session_store_conformance as run_session_store_conformance,
)
