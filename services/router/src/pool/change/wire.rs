//! Changes as messages. What comes from another router is checked as any foreign message is.

use std::sync::Arc;

use domain::{BlockKey, BlockUnit, KeyList, Moment};
use kv_index::{Content, Started};
use prost::Message as _;
use proto::common::v1 as common;
use proto::replication::v1 as wire;
use proto::replication::v1::pool_change::Kind;
use proto::{WireError, control};
use replication::{LeaseKey, Phase};
use scheduling::Coefficients;

use super::{Change, Left, OpenBlocks, Opening, Progress};

impl From<&Change> for wire::PoolChange {
    fn from(change: &Change) -> Self {
        let kind = match change {
            Change::Seated { backend, model } => Kind::Seated(wire::Seated {
                backend: control::backend(backend, Moment::ZERO).encode_to_vec().into(),
                model: model.to_string(),
            }),
            Change::Unseated { backend } => {
                Kind::Unseated(wire::Unseated { backend: backend.to_string() })
            }
            Change::Booked(opening) => Kind::Booked((&**opening).into()),
            Change::Started { lease } => Kind::Started(wire::Started { lease: Some(lease.into()) }),
            Change::Progressed(progress) => Kind::Progressed(progress.into()),
            Change::Closed { lease, left } => Kind::Closed(wire::Closed {
                lease: Some(lease.into()),
                left: left.as_deref().map(Into::into),
            }),
            Change::Capacity { rank, unit, blocks } => Kind::Capacity(wire::Capacity {
                rank: Some(rank.into()),
                unit: Some(key_list(*unit, &[])),
                blocks: *blocks,
            }),
            Change::Cached { rank, unit, content } => {
                let (keys, item) = cached(*unit, content);
                Kind::Cached(wire::Cached {
                    rank: Some(rank.into()),
                    keys: Some(keys),
                    item: Some(item),
                })
            }
            Change::Learned { rank, coefficients, samples } => {
                let c = coefficients;
                Kind::Learned(wire::Learned {
                    rank: Some(rank.into()),
                    latency_seconds: c.latency_seconds,
                    fixed_seconds: c.fixed_seconds,
                    per_token_seconds: c.per_token_seconds,
                    per_pair_seconds: c.per_pair_seconds,
                    decode_step_seconds: c.decode_step_seconds,
                    decode_running_seconds: c.decode_running_seconds,
                    samples: *samples,
                })
            }
        };
        Self { kind: Some(kind) }
    }
}

impl TryFrom<wire::PoolChange> for Change {
    type Error = WireError;

    fn try_from(change: wire::PoolChange) -> Result<Self, WireError> {
        Ok(match present("kind", change.kind)? {
            Kind::Seated(seated) => {
                let backend = proto::control::v1::Backend::decode(&seated.backend[..])
                    .map_err(|_| odd("seated.backend", "no backend"))?;
                // Copies do not use the load, whose age is counted from here.
                let backend = control::read_backend(backend, Moment::ZERO)?;
                Change::Seated { backend: Arc::new(backend), model: seated.model.as_str().into() }
            }
            Kind::Unseated(unseated) => {
                Change::Unseated { backend: unseated.backend.as_str().into() }
            }
            Kind::Booked(booked) => Change::Booked(Box::new(booked.try_into()?)),
            Kind::Started(started) => Change::Started { lease: lease(started.lease)? },
            Kind::Progressed(progressed) => Change::Progressed(progressed.try_into()?),
            Kind::Closed(closed) => Change::Closed {
                lease: lease(closed.lease)?,
                left: closed.left.map(TryInto::try_into).transpose()?.map(Box::new),
            },
            Kind::Capacity(capacity) => Change::Capacity {
                rank: present("capacity.rank", capacity.rank)?.try_into()?,
                unit: read_keys(capacity.unit)?.unit,
                blocks: capacity.blocks,
            },
            Kind::Cached(cached) => {
                let (rank, KeyList { unit, keys }) =
                    (present("cached.rank", cached.rank)?.try_into()?, read_keys(cached.keys)?);
                let content = read_content(keys.to_vec(), present("cached.item", cached.item)?);
                Change::Cached { rank, unit, content }
            }
            Kind::Learned(learned) => Change::Learned {
                rank: present("learned.rank", learned.rank)?.try_into()?,
                coefficients: Coefficients {
                    latency_seconds: learned.latency_seconds,
                    fixed_seconds: learned.fixed_seconds,
                    per_token_seconds: learned.per_token_seconds,
                    per_pair_seconds: learned.per_pair_seconds,
                    decode_step_seconds: learned.decode_step_seconds,
                    decode_running_seconds: learned.decode_running_seconds,
                },
                samples: learned.samples,
            },
        })
    }
}

impl From<&Opening> for wire::Booked {
    fn from(opening: &Opening) -> Self {
        Self {
            lease: Some((&opening.lease).into()),
            held: Some((&opening.edge_lease).into()),
            blocks: opening.blocks.as_ref().map(Into::into),
            prompt_tokens: opening.prompt_tokens,
            text_bytes: opening.text_bytes,
            uncached_tokens: opening.uncached_tokens,
            cached_tokens: opening.cached_tokens,
            predicted_ttft_seconds: opening.ttft_seconds,
            grain_tokens: opening.grain,
            stream: opening.stream,
            bytes_per_token: opening.bytes_per_token,
            first_token: opening.first_token,
            generated: opening.generated,
            adopted: opening.adopted,
            homeless: opening.without_rank,
        }
    }
}

impl TryFrom<wire::Booked> for Opening {
    type Error = WireError;

    fn try_from(booked: wire::Booked) -> Result<Self, WireError> {
        finite("booked.predicted_ttft_seconds", booked.predicted_ttft_seconds)?;
        finite("booked.bytes_per_token", booked.bytes_per_token)?;
        Ok(Self {
            lease: lease(booked.lease)?,
            edge_lease: present("booked.held", booked.held)?.try_into()?,
            blocks: booked.blocks.map(TryInto::try_into).transpose()?,
            prompt_tokens: booked.prompt_tokens,
            text_bytes: booked.text_bytes,
            uncached_tokens: booked.uncached_tokens,
            cached_tokens: booked.cached_tokens,
            ttft_seconds: booked.predicted_ttft_seconds,
            grain: booked.grain_tokens,
            stream: booked.stream,
            bytes_per_token: booked.bytes_per_token,
            first_token: booked.first_token,
            generated: booked.generated,
            adopted: booked.adopted,
            without_rank: booked.homeless,
        })
    }
}

impl From<&OpenBlocks> for wire::Blocks {
    fn from(blocks: &OpenBlocks) -> Self {
        let started = blocks.started.map(|started| wire::StartedAs {
            cached_blocks: started.cached_blocks,
            answer_blocks: started.answer_blocks,
            evicted_blocks: started.evicted_blocks,
        });
        Self {
            keys: Some((&blocks.keys).into()),
            extra_blocks: blocks.extra,
            generated_blocks: blocks.generated,
            counts_on_answer: blocks.counts_on_answer,
            started,
            holds_copy: blocks.holds_copy,
        }
    }
}

impl TryFrom<wire::Blocks> for OpenBlocks {
    type Error = WireError;

    fn try_from(blocks: wire::Blocks) -> Result<Self, WireError> {
        believable("blocks.extra_blocks", blocks.extra_blocks)?;
        believable("blocks.generated_blocks", blocks.generated_blocks)?;
        let started = blocks.started.map(|started| Started {
            cached_blocks: started.cached_blocks,
            answer_blocks: started.answer_blocks,
            evicted_blocks: started.evicted_blocks,
        });
        Ok(Self {
            keys: read_keys(blocks.keys)?,
            extra: blocks.extra_blocks,
            generated: blocks.generated_blocks,
            counts_on_answer: blocks.counts_on_answer,
            started,
            holds_copy: blocks.holds_copy,
        })
    }
}

impl From<&Progress> for wire::Progressed {
    fn from(progress: &Progress) -> Self {
        let phase = match progress.phase {
            Phase::Waiting => common::Phase::Waiting,
            Phase::Generating => common::Phase::Generating,
        };
        Self {
            lease: Some((&progress.lease).into()),
            blocks: progress.blocks,
            phase: phase.into(),
            first_token: progress.first_token,
            generated: progress.generated,
            output_blocks: progress.output_blocks,
        }
    }
}

impl TryFrom<wire::Progressed> for Progress {
    type Error = WireError;

    fn try_from(progressed: wire::Progressed) -> Result<Self, WireError> {
        let phase = match progressed.phase() {
            common::Phase::Waiting => Phase::Waiting,
            common::Phase::Generating => Phase::Generating,
            common::Phase::Unspecified => return Err(odd("progressed.phase", "unspecified")),
        };
        believable("progressed.output_blocks", progressed.output_blocks)?;
        Ok(Self {
            lease: lease(progressed.lease)?,
            blocks: progressed.blocks,
            phase,
            first_token: progressed.first_token,
            generated: progressed.generated,
            output_blocks: progressed.output_blocks,
        })
    }
}

impl From<&Left> for wire::Left {
    fn from(left: &Left) -> Self {
        Self {
            output_blocks: left.output_blocks,
            cached_blocks: left.cached_blocks,
            answer_keys: left.answer_keys.iter().map(|key| key.0).collect(),
            keep_blocks: left.keep_blocks,
            emptied: left.emptied,
            capacity_blocks: left.capacity,
        }
    }
}

impl TryFrom<wire::Left> for Left {
    type Error = WireError;

    fn try_from(left: wire::Left) -> Result<Self, WireError> {
        Ok(Self {
            output_blocks: believable("left.output_blocks", left.output_blocks)?,
            cached_blocks: left.cached_blocks,
            answer_keys: left.answer_keys.into_iter().map(BlockKey).collect(),
            keep_blocks: left.keep_blocks,
            emptied: left.emptied,
            capacity: left.capacity_blocks,
        })
    }
}

fn cached(unit: BlockUnit, content: &Content) -> (common::KeyList, wire::cached::Item) {
    let (keys, item) = match content {
        Content::Prefix { keys, blocks, asks } => {
            (keys, wire::cached::Item::Run(wire::Run { blocks: *blocks, asks: *asks }))
        }
        Content::Copy { keys } => (keys, wire::cached::Item::Copy(true)),
        Content::Output { blocks, after } => (after, wire::cached::Item::OutputBlocks(*blocks)),
    };
    (key_list(unit, keys), item)
}

fn read_content(keys: Vec<BlockKey>, item: wire::cached::Item) -> Content {
    match item {
        wire::cached::Item::Run(run) => {
            let asks = if run.asks.is_finite() { run.asks.max(0.0) } else { 0.0 };
            Content::Prefix { keys, blocks: run.blocks, asks }
        }
        wire::cached::Item::Copy(_) => Content::Copy { keys },
        wire::cached::Item::OutputBlocks(blocks) => Content::Output { blocks, after: keys },
    }
}

fn key_list(unit: BlockUnit, keys: &[BlockKey]) -> common::KeyList {
    (&KeyList { unit, keys: keys.into() }).into()
}

fn read_keys(keys: Option<common::KeyList>) -> Result<KeyList, WireError> {
    present("keys", keys)?.try_into()
}

fn lease(lease: Option<common::LeaseKey>) -> Result<LeaseKey, WireError> {
    present("lease", lease)?.try_into()
}

fn present<T>(field: &'static str, value: Option<T>) -> Result<T, WireError> {
    value.ok_or(WireError::Missing(field))
}

/// Blocks that one request may hold beside its keys: more than any engine has.
const MOST_BLOCKS: u32 = 1 << 24;

/// Anyone on the bus may say anything: a number that no request can have is not counted with.
fn believable(field: &'static str, blocks: u32) -> Result<u32, WireError> {
    if blocks > MOST_BLOCKS { Err(odd(field, &blocks.to_string())) } else { Ok(blocks) }
}

fn finite(field: &'static str, value: f64) -> Result<(), WireError> {
    if value.is_finite() && value >= 0.0 { Ok(()) } else { Err(odd(field, &value.to_string())) }
}

fn odd(field: &'static str, value: &str) -> WireError {
    WireError::NotAllowed { field, value: value.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn booked() -> wire::Booked {
        let process = || Some(common::Process { id: "edge".to_owned(), incarnation: 1 });
        let rank = common::Rank { backend: "b0".to_owned(), incarnation: 1, rank: 0 };
        wire::Booked {
            lease: Some(common::LeaseKey { edge: process(), lease: 7 }),
            held: Some(common::Lease {
                rank: Some(rank),
                blocks: 3,
                phase: common::Phase::Waiting.into(),
            }),
            blocks: None,
            bytes_per_token: 4.0,
            ..wire::Booked::default()
        }
    }

    #[test]
    fn numbers_that_no_request_can_have_are_not_taken() {
        assert!(Opening::try_from(booked()).is_ok());
        for odd in [f64::NAN, f64::INFINITY, -1.0] {
            let of_text = wire::Booked { bytes_per_token: odd, ..booked() };
            assert!(Opening::try_from(of_text).is_err(), "{odd}");
            let of_time = wire::Booked { predicted_ttft_seconds: odd, ..booked() };
            assert!(Opening::try_from(of_time).is_err(), "{odd}");
        }
        let keys = key_list(BlockUnit::Tokens(16), &[BlockKey(1)]);
        let blocks = |extra_blocks, generated_blocks| wire::Blocks {
            keys: Some(keys.clone()),
            extra_blocks,
            generated_blocks,
            ..wire::Blocks::default()
        };
        assert!(OpenBlocks::try_from(blocks(1, 2)).is_ok());
        assert!(OpenBlocks::try_from(blocks(u32::MAX, 0)).is_err());
        assert!(OpenBlocks::try_from(blocks(0, u32::MAX)).is_err());
        let left = |output_blocks| wire::Left { output_blocks, ..wire::Left::default() };
        assert!(Left::try_from(left(4)).is_ok() && Left::try_from(left(u32::MAX)).is_err());
    }
}
