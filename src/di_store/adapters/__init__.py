"""Di-store behind the interfaces of other frameworks. Each has a module, which is imported only if it is used.

An adapter uses the public API of di_store, as any program does. It needs its framework:
``pip install di-store[<name>]``. di_store itself needs none of them.
"""
