//! The few request fields the gateway reads, byte-preserving edits, the SSE splitter and error bodies.
