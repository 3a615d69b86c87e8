"""Served stores and nodes, as tests of clusters have them."""

from __future__ import annotations

from cluster.conftest import authorities, far, near, serve, stores

__all__ = ["authorities", "far", "near", "serve", "stores"]
