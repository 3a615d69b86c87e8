"""What `di-store bench` measures: quick workloads in one process, and named loads carried by many.

Comparisons with other systems are not part of the package.
"""
