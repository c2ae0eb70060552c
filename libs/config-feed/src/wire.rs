//! Events as messages of `warmpath.control.v1`, and back.

use std::sync::Arc;

use bytes::Bytes;
use domain::Moment;
use prost::Message;
use proto::WireError;
use proto::control::v1::{self as wire, watch_event::Kind};
use proto::control::{self as convert};
use replication::Epoch;

use crate::{Document, Event, FleetChange, Heartbeat, Loads, Position};

/// An event as bytes, its loads as old as they are at `now`.
pub(crate) fn encode(event: &Event, now: Moment) -> Bytes {
    let kind = match event {
        Event::Restart => Kind::Restart(wire::Restart { store: String::new() }),
        Event::Document(document) => Kind::Document(wire_document(document)),
        Event::Synced(position) => Kind::Synced(wire::Synced {
            store: position.store.to_string(),
            revision: position.revision,
        }),
        Event::Fleet(change) => Kind::Fleet(wire_change(change, now)),
        Event::Loads(loads) => Kind::Loads(wire_loads(loads, now)),
        Event::Members(list) => Kind::Members(list.into()),
        Event::Heartbeat(heartbeat) => Kind::Heartbeat(wire::Heartbeat {
            store: heartbeat.position.store.to_string(),
            revision: heartbeat.position.revision,
            start: heartbeat.start,
            fleet_revision: heartbeat.fleet_revision,
            epoch: Some(heartbeat.epoch.into()),
        }),
    };
    wire::WatchEvent { kind: Some(kind) }.encode_to_vec().into()
}

/// The event of a message that came at `now`; `None` for a kind of a later version, which may be
/// ignored.
///
/// # Errors
/// It is no such message, or a part of it has no meaning here.
pub(crate) fn decode(bytes: Bytes, now: Moment) -> Result<Option<Event>, String> {
    let event = wire::WatchEvent::decode(bytes).map_err(|e| e.to_string())?;
    let Some(kind) = event.kind else { return Ok(None) };
    let text = |error: WireError| error.to_string();
    let event = match kind {
        Kind::Restart(_) => Event::Restart,
        Kind::Document(document) => Event::Document(Arc::new(read_document(document)?)),
        Kind::Synced(wire::Synced { store, revision }) => {
            Event::Synced(Position { store: store.into(), revision })
        }
        Kind::Fleet(change) => Event::Fleet(Arc::new(read_change(change, now).map_err(text)?)),
        Kind::Loads(loads) => Event::Loads(Arc::new(read_loads(loads, now).map_err(text)?)),
        Kind::Members(list) => Event::Members(list.try_into().map_err(text)?),
        Kind::Heartbeat(heartbeat) => Event::Heartbeat(Heartbeat {
            position: Position { store: heartbeat.store.into(), revision: heartbeat.revision },
            start: heartbeat.start,
            fleet_revision: heartbeat.fleet_revision,
            epoch: heartbeat.epoch.map_or(Epoch::ZERO, Epoch::from),
        }),
    };
    Ok(Some(event))
}

fn wire_document(document: &Document) -> wire::Document {
    wire::Document {
        kind: document.kind.to_string(),
        id: document.id.to_string(),
        revision: document.revision,
        json: document.json.clone(),
        schema_major: document.schema.0.into(),
        schema_minor: document.schema.1.into(),
    }
}

fn read_document(document: wire::Document) -> Result<Document, String> {
    let number = |n: u32| u16::try_from(n).map_err(|_| "a schema's number".to_owned());
    Ok(Document {
        kind: document.kind.into(),
        id: document.id.into(),
        revision: document.revision,
        schema: (number(document.schema_major)?, number(document.schema_minor)?),
        json: document.json,
    })
}

fn wire_change(change: &FleetChange, now: Moment) -> wire::FleetChange {
    wire::FleetChange {
        start: change.start,
        revision: change.revision,
        whole: change.whole,
        changed: change.changed.iter().map(|b| convert::backend(b, now)).collect(),
        removed: change.removed.iter().map(ToString::to_string).collect(),
        more: change.more,
    }
}

fn read_change(change: wire::FleetChange, now: Moment) -> Result<FleetChange, WireError> {
    let backend = |b| convert::read_backend(b, now).map(Arc::new);
    Ok(FleetChange {
        start: change.start,
        revision: change.revision,
        whole: change.whole,
        changed: change.changed.into_iter().map(backend).collect::<Result<_, _>>()?,
        removed: change.removed.iter().map(|id| id.as_str().into()).collect(),
        more: change.more,
    })
}

fn wire_loads(loads: &Loads, now: Moment) -> wire::FleetLoads {
    let backend = |(id, ranks): &(domain::BackendId, Vec<_>)| wire::BackendLoad {
        id: id.to_string(),
        ranks: (ranks.iter())
            .map(|(rank, load)| wire::RankLoad {
                rank: u32::from(*rank),
                load: Some(convert::load(load, now)),
            })
            .collect(),
    };
    wire::FleetLoads {
        start: loads.start,
        revision: loads.revision,
        loads: loads.backends.iter().map(backend).collect(),
    }
}

fn read_loads(loads: wire::FleetLoads, now: Moment) -> Result<Loads, WireError> {
    let rank = |rank: &wire::RankLoad| {
        let load = rank.load.as_ref().ok_or(WireError::Missing("load"))?;
        Ok((convert::read_rank_number(rank.rank)?, convert::read_load(load, now)))
    };
    let backend = |b: &wire::BackendLoad| {
        Ok((b.id.as_str().into(), b.ranks.iter().map(rank).collect::<Result<_, WireError>>()?))
    };
    Ok(Loads {
        start: loads.start,
        revision: loads.revision,
        backends: loads.loads.iter().map(backend).collect::<Result<_, WireError>>()?,
    })
}
