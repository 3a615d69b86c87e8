"""The measurements of `di-store bench`: quick workloads in one process, and named loads carried by many processes.

Comparisons with other systems are not part of the package.
"""
