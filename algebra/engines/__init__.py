"""Engines that run the joins of a sweep: the contract, the reference and the embedded one."""
