"""The benchmark: one TPC-H-shaped workload over three sources, measured through real processes."""
