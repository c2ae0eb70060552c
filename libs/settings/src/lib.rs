//! Layered settings with errors that name the key, and secrets that do not print.
