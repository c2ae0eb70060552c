//! Which requests are traced, and what is told of them.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::SystemTime;

use domain::Moment;
use opentelemetry::trace::{
    SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState,
};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};

use crate::Error;
use crate::config::Config;
use crate::context::{Parent, traceparent};
use crate::export::{Exporter, Inlet, Metrics};

/// Decides which requests are traced.
#[derive(Clone, Debug)]
pub struct Tracer(Option<Arc<Open>>);

#[derive(Debug)]
struct Open {
    sample_ratio: f64,
    scope: InstrumentationScope,
    inlet: Inlet,
}

/// A request that is traced.
#[derive(Clone, Debug)]
pub struct Trace {
    open: Arc<Open>,
    id: TraceId,
    /// The span that called us.
    parent: SpanId,
    state: TraceState,
}

/// A stretch of a request's time that is over.
#[derive(Clone, Debug)]
pub struct Span {
    /// As [`Trace::span_id`] gave it.
    pub id: SpanId,
    /// The span that it is a part of.
    pub parent: SpanId,
    /// What was done: of few values.
    pub name: Cow<'static, str>,
    /// Which side of a call it was.
    pub kind: SpanKind,
    /// When it began.
    pub start: Moment,
    /// When it was over.
    pub end: Moment,
    /// What is known of it.
    pub attributes: Vec<KeyValue>,
    /// Why it failed, if it did.
    pub failure: Option<&'static str>,
}

impl Tracer {
    /// Traces nothing.
    pub fn off() -> Self {
        Self(None)
    }

    /// Traces as configured, for a service of this name and version, whose spans follow the
    /// conventions of a schema. The exporter is to be run.
    ///
    /// # Errors
    /// The exporter cannot be built.
    pub fn new(
        config: &Config,
        (name, version, schema): (&'static str, &'static str, &'static str),
        metrics: Metrics,
    ) -> Result<(Self, Exporter), Error> {
        let (inlet, exporter) = Exporter::new(config, (name, version), metrics)?;
        let scope = InstrumentationScope::builder(name)
            .with_version(version)
            .with_schema_url(schema)
            .build();
        let open = Open { sample_ratio: config.sample_ratio, scope, inlet };
        Ok((Self(Some(Arc::new(open))), exporter))
    }

    /// Whether anything is traced.
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// The trace of a request, if it is traced: one that comes with a context as that says, one
    /// without by chance.
    pub fn begin(&self, parent: Option<Parent>) -> Option<Trace> {
        let open = self.0.as_ref()?;
        let (id, parent, state) = match parent {
            Some(Parent { sampled: false, .. }) => return None,
            Some(Parent { trace, span, state, .. }) => (trace, span, state),
            None => {
                let id = random().map(TraceId::from_bytes)?;
                if !is_chosen(id, open.sample_ratio) {
                    return None;
                }
                (id, SpanId::INVALID, TraceState::NONE)
            }
        };
        Some(Trace { open: Arc::clone(open), id, parent, state })
    }
}

impl Trace {
    /// An id for a span that begins.
    pub fn span_id(&self) -> SpanId {
        random().map_or(SpanId::INVALID, SpanId::from_bytes)
    }

    /// The span that called us, or none.
    pub fn parent(&self) -> SpanId {
        self.parent
    }

    /// The `traceparent` for whoever is called from `span`.
    pub fn traceparent(&self, span: SpanId) -> String {
        traceparent(self.id, span)
    }

    /// Hands a span over.
    pub fn tell(&self, span: Span) {
        let wall = Wall::now();
        let context = |id, is_remote| {
            SpanContext::new(self.id, id, TraceFlags::SAMPLED, is_remote, self.state.clone())
        };
        self.open.inlet.push(SpanData {
            span_context: context(span.id, false),
            parent_span_id: span.parent,
            parent_span_is_remote: span.parent == self.parent && span.parent != SpanId::INVALID,
            span_kind: span.kind,
            name: span.name,
            start_time: wall.at(span.start),
            end_time: wall.at(span.end),
            attributes: span.attributes,
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links: SpanLinks::default(),
            status: span.failure.map_or(Status::Unset, Status::error),
            instrumentation_scope: self.open.scope.clone(),
        });
    }
}

/// Both clocks at one moment.
struct Wall {
    moment: Moment,
    time: SystemTime,
}

impl Wall {
    fn now() -> Self {
        Self { moment: lifecycle::monotonic(), time: SystemTime::now() }
    }

    fn at(&self, moment: Moment) -> SystemTime {
        self.time.checked_sub(self.moment - moment).unwrap_or(SystemTime::UNIX_EPOCH)
    }
}

fn random<const N: usize>() -> Option<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).ok()?;
    // All zero is no id.
    bytes[N - 1] |= u8::from(bytes == [0; N]);
    Some(bytes)
}

/// By the last half of the id, so that all who see it choose alike.
fn is_chosen(id: TraceId, ratio: f64) -> bool {
    let [.., a, b, c, d, e, f, g, h] = id.to_bytes();
    let drawn = u64::from_be_bytes([a, b, c, d, e, f, g, h]) >> 11;
    // 53 bits are what a float holds.
    (drawn as f64) < ratio * (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(last: u64) -> TraceId {
        TraceId::from_bytes(u128::from(last).to_be_bytes())
    }

    #[test]
    fn all_none_or_a_share_is_chosen() {
        for last in [0, 1, u64::MAX / 2, u64::MAX] {
            assert!(is_chosen(id(last), 1.0), "{last}");
            assert!(!is_chosen(id(last), 0.0), "{last}");
        }
        assert!(is_chosen(id(u64::MAX / 5), 0.25));
        assert!(!is_chosen(id(u64::MAX / 3), 0.25));
    }

    #[test]
    fn off_traces_nothing_whatever_comes() {
        let parent = Parent::read(b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", None);
        assert!(Tracer::off().begin(parent).is_none());
        assert!(!Tracer::off().is_on());
    }
}
