"""The timer layer: wheel, TimerLog and runners; all of it can be rebuilt from the store.

Owns the timer directory: per shard a TimerLog, a TimerWheel, ready files and a cursor. All of it is
derived from the entries table, so deleting it costs time and loses nothing.
Leaves to others: what a message is (store), when exactly it goes out and whether it still may (release).
"""
