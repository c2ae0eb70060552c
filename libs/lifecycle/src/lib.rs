//! Signals, drain, supervised tasks and the admin port.
