//! Filter, score and pick: pure functions over a snapshot.
