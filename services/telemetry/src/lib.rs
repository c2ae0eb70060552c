//! Telemetry: scrapes, probes and reconciles the backends.
