//! JSON logs and the metrics registry.
