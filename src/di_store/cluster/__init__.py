"""Stores of several machines as one: the nodes, the places of tables and objects, and the publishers of weights."""

from di_store.cluster.joining import attach as attach
