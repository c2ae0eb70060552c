//! Radix tree of block keys to holders, with the engine's eviction mirrored; synchronous, no clock, no I/O.
