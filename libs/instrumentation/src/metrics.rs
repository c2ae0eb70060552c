//! Helpers around the Prometheus registry.

use prometheus::{IntGauge, Opts, Registry, TextEncoder};

use crate::InstrumentationError;

/// Buckets, in seconds, for the time that the gateway itself adds: 50 µs to 100 ms.
pub const OVERHEAD_SECONDS: &[f64] =
    &[50e-6, 100e-6, 200e-6, 400e-6, 800e-6, 1.5e-3, 3e-3, 6e-3, 12e-3, 25e-3, 50e-3, 100e-3];

/// Buckets, in seconds, for what an engine takes (TTFT, queue delay, whole answers): 1 ms to
/// 120 s. Cached prefixes answer in milliseconds, cold long prompts in tens of seconds.
pub const LATENCY_SECONDS: &[f64] = &[
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0,
    120.0,
];

/// Something that a gauge counts while it is there.
#[derive(Debug)]
pub struct CountedIn(IntGauge);

impl CountedIn {
    /// Counts one more in the gauge.
    pub fn new(gauge: &IntGauge) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }
}

impl Drop for CountedIn {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// Everything registered, in the Prometheus text format 0.0.4.
pub fn encode(registry: &Registry) -> String {
    let mut text = String::new();
    for family in registry.gather() {
        // One family that cannot be encoded (it has no samples) must not hide the others.
        let start = text.len();
        if TextEncoder::new().encode_utf8(std::slice::from_ref(&family), &mut text).is_err() {
            text.truncate(start);
        }
    }
    text
}

/// Adds `warmpath_build_info{service,version} 1`.
///
/// # Errors
/// The registry has a metric of that name.
pub fn register_build_info(
    registry: &Registry,
    service: &'static str,
    version: &'static str,
) -> Result<(), InstrumentationError> {
    let opts = Opts::new("warmpath_build_info", "Always 1; what is running is in the labels.")
        .const_label("service", service)
        .const_label("version", version);
    let info = IntGauge::with_opts(opts)?;
    info.set(1);
    Ok(registry.register(Box::new(info))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn build_info_shows_what_is_running() {
        let registry = Registry::new();
        register_build_info(&registry, "edge", "1.2.3").unwrap();
        let text = encode(&registry);
        let line = r#"warmpath_build_info{service="edge",version="1.2.3"} 1"#;
        assert!(text.lines().any(|found| found == line), "{text}");
    }

    #[test]
    fn a_family_without_samples_hides_no_other() {
        let registry = Registry::new();
        let empty = prometheus::IntCounterVec::new(Opts::new("a_empty", "none yet"), &["x"]);
        registry.register(Box::new(empty.unwrap())).unwrap();
        register_build_info(&registry, "edge", "1.2.3").unwrap();
        assert!(encode(&registry).contains("warmpath_build_info"));
    }

    #[test]
    fn buckets_grow_strictly() {
        for buckets in [OVERHEAD_SECONDS, LATENCY_SECONDS] {
            assert!(buckets.windows(2).all(|pair| pair[0] < pair[1]));
        }
    }
}
