"""Private database servers for tests and the lab: a folder and a loopback port of their own, nothing else.

Services of the machine are never touched.
"""
