"""Deterministic simulation of whole clusters: real engines and the real C core on a seeded virtual network.

One seed makes the cluster, its options, the load and every fault; nothing here reads a clock or any other source of chance.
``docs/simulation.md`` says how to run it and how to read a failure.
"""
