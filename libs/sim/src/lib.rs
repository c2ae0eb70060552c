//! The engine model with vLLM's exact free queue, and the workloads.
