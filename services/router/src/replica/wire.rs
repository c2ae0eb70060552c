//! Pools' messages on the wire.

use std::sync::Arc;

use proto::WireError;
use proto::replication::v1;
use proto::replication::v1::pool_message::Kind;
use replication::{Heartbeat, MessageOf, PoolId, PoolMessage, Position, Stream};

use crate::pool::{Change, State};

type Message = MessageOf<State>;

/// A pool's message.
pub(crate) fn message(pool: &PoolId, message: Message) -> v1::PoolMessage {
    let kind = match message {
        PoolMessage::Heartbeat(beat) => Kind::Heartbeat(heartbeat(&beat)),
        PoolMessage::Delta { stream, seq, delta } => Kind::Delta(v1::Delta {
            stream: Some((&stream).into()),
            seq,
            change: Some((&*delta).into()),
        }),
        PoolMessage::Repair { stream, from } => {
            Kind::Repair(v1::Repair { stream: Some((&stream).into()), from })
        }
        PoolMessage::PastRing { stream } => {
            Kind::PastRing(v1::PastRing { stream: Some((&stream).into()) })
        }
        PoolMessage::Fetch { stream, snapshot, index } => {
            Kind::Fetch(v1::Fetch { stream: Some((&stream).into()), snapshot, index })
        }
        PoolMessage::Chunk { stream, snapshot, index, count, chunk } => {
            let changes = chunk.map(|chunk| v1::PoolChanges {
                changes: chunk.iter().map(|change| (&**change).into()).collect(),
            });
            Kind::Chunk(v1::Chunk {
                stream: Some((&stream).into()),
                snapshot,
                index,
                count,
                changes,
            })
        }
        PoolMessage::Claim { position: at } => {
            Kind::Claim(v1::Claim { position: at.as_ref().map(position) })
        }
        PoolMessage::Release { position: at } => {
            Kind::Release(v1::Release { position: Some(position(&at)) })
        }
        PoolMessage::Deposed { reign } => {
            Kind::Deposed(v1::Deposed { reign: Some((&reign).into()) })
        }
    };
    v1::PoolMessage { pool: pool.as_str().to_owned(), kind: Some(kind) }
}

/// What a message says of which pool. `None` for a kind that this version does not know.
///
/// # Errors
/// It makes no sense.
pub(crate) fn read(message: v1::PoolMessage) -> Result<Option<(PoolId, Message)>, WireError> {
    let pool = PoolId::new(message.pool);
    let Some(kind) = message.kind else { return Ok(None) };
    let message = match kind {
        Kind::Heartbeat(beat) => PoolMessage::Heartbeat(read_heartbeat(beat)?),
        Kind::Delta(delta) => PoolMessage::Delta {
            stream: stream(delta.stream)?,
            seq: delta.seq,
            delta: Arc::new(Change::try_from(present("delta.change", delta.change)?)?),
        },
        Kind::Repair(repair) => {
            PoolMessage::Repair { stream: stream(repair.stream)?, from: repair.from }
        }
        Kind::PastRing(past) => PoolMessage::PastRing { stream: stream(past.stream)? },
        Kind::Fetch(fetch) => PoolMessage::Fetch {
            stream: stream(fetch.stream)?,
            snapshot: fetch.snapshot,
            index: fetch.index,
        },
        Kind::Chunk(chunk) => PoolMessage::Chunk {
            stream: stream(chunk.stream)?,
            snapshot: chunk.snapshot,
            index: chunk.index,
            count: chunk.count,
            chunk: chunk.changes.map(read_changes).transpose()?,
        },
        Kind::Claim(claim) => {
            PoolMessage::Claim { position: claim.position.map(read_position).transpose()? }
        }
        Kind::Release(release) => PoolMessage::Release {
            position: read_position(present("release.position", release.position)?)?,
        },
        Kind::Deposed(deposed) => {
            PoolMessage::Deposed { reign: present("deposed.reign", deposed.reign)?.try_into()? }
        }
    };
    Ok(Some((pool, message)))
}

fn read_changes(changes: v1::PoolChanges) -> Result<Arc<Vec<Arc<Change>>>, WireError> {
    let read = |change| Change::try_from(change).map(Arc::new);
    Ok(Arc::new(changes.changes.into_iter().map(read).collect::<Result<_, _>>()?))
}

fn heartbeat(beat: &Heartbeat) -> v1::Heartbeat {
    let checksum = |(rank, checksum): &(domain::RankId, u64)| v1::RankChecksum {
        rank: Some(rank.into()),
        checksum: *checksum,
    };
    v1::Heartbeat {
        reign: Some((&beat.reign).into()),
        seq: beat.seq,
        since: beat.since.as_ref().map(position),
        checksums: beat.checksums.iter().map(checksum).collect(),
    }
}

fn read_heartbeat(beat: v1::Heartbeat) -> Result<Heartbeat, WireError> {
    let checksum =
        |sum: v1::RankChecksum| Ok((present("checksum.rank", sum.rank)?.try_into()?, sum.checksum));
    Ok(Heartbeat {
        reign: present("heartbeat.reign", beat.reign)?.try_into()?,
        since: beat.since.map(read_position).transpose()?,
        seq: beat.seq,
        checksums: beat.checksums.into_iter().map(checksum).collect::<Result<_, WireError>>()?,
    })
}

fn position(position: &Position) -> v1::Position {
    v1::Position { stream: Some((&position.stream).into()), seq: position.seq }
}

fn read_position(position: v1::Position) -> Result<Position, WireError> {
    Ok(Position { stream: stream(position.stream)?, seq: position.seq })
}

fn stream(stream: Option<proto::common::v1::Stream>) -> Result<Stream, WireError> {
    present("stream", stream)?.try_into()
}

fn present<T>(field: &'static str, value: Option<T>) -> Result<T, WireError> {
    value.ok_or(WireError::Missing(field))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use prost::Message as _;

    use super::*;

    /// Whatever version 1 said has a meaning, and is said the same way today.
    #[test]
    fn every_recorded_message_of_another_router_has_a_meaning() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../proto/tests/recorded");
        let mut read_so_far = 0;
        for file in fs::read_dir(folder).unwrap().map(|file| file.unwrap()) {
            let name = file.file_name().into_string().unwrap();
            if !name.starts_with("replication-v1-") {
                continue;
            }
            let envelope = v1::Envelope::decode(&fs::read(file.path()).unwrap()[..]).unwrap();
            for said in envelope.messages {
                let (pool, meant) = read(said.clone()).unwrap().unwrap();
                assert_eq!(message(&pool, meant), said, "{name}");
                read_so_far += 1;
            }
        }
        assert_eq!(read_so_far, 19);
    }
}
