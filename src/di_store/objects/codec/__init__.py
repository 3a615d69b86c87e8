"""Converts Python values to bytes and back, for `store.put` and `store.get`.

A value becomes a *header* and a *payload*. The header describes the structure of the value. The payload holds the bytes
of its arrays, each at a multiple of 64 bytes, so that they are read in place. Containers (dict, OrderedDict, list,
tuple, named tuples, dataclasses) and leaves (numpy arrays and scalars, torch tensors, numbers, text, bytes) have forms
of their own. Everything else is a pickle of protocol 5, whose buffers lie in the payload as well.
"""

from di_store.objects.codec.decode import decode as decode
from di_store.objects.codec.encode import Encoded as Encoded
from di_store.objects.codec.encode import encode as encode
from di_store.objects.codec.leaves import ArrayLeaf as ArrayLeaf
from di_store.objects.codec.leaves import build as build
from di_store.objects.codec.leaves import leaves_of as leaves_of
from di_store.objects.codec.leaves import shown_path as shown_path
from di_store.objects.codec.leaves import small_spans as small_spans
from di_store.objects.codec.plans import Bytes as Bytes
from di_store.objects.codec.plans import Plans as Plans
