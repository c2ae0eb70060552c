//! Backends, loads and member lists on the wire of `warmpath.control.v1`.

/// Version 1.
#[allow(missing_docs, unreachable_pub, clippy::all)]
pub mod v1 {
    tonic::include_proto!("warmpath.control.v1");
}

use std::time::Duration;

use domain::{
    Backend, BackendState, Base, CacheConfig, EngineKind, Incarnation, LoadSample, ModelId, Moment,
    PrefillCounters, RankState, ServedModel,
};

use self::v1 as wire;
use crate::WireError;

/// A backend, its loads as old as they are at `now`.
pub fn backend(backend: &Backend, now: Moment) -> wire::Backend {
    wire::Backend {
        id: backend.id.to_string(),
        incarnation: backend.incarnation.0,
        url: backend.url.to_string(),
        engine: backend.engine.as_str().to_owned(),
        state: backend.state.as_str().to_owned(),
        models: backend.models.iter().map(model).collect(),
        ranks: backend.ranks.iter().map(|rank| rank_state(rank, now)).collect(),
        network_seconds: backend.network.as_secs_f64(),
        credential: backend.credential.as_deref().map(str::to_owned),
    }
}

/// The backend of a message that came at `now`.
///
/// # Errors
/// A state that is not known. An engine that is not known is another one: it is followed by text.
pub fn read_backend(backend: wire::Backend, now: Moment) -> Result<Backend, WireError> {
    let network = Duration::try_from_secs_f64(backend.network_seconds).unwrap_or_default();
    let state = BackendState::from_name(&backend.state).ok_or_else(|| {
        let value = backend.state.clone();
        WireError::NotAllowed { field: "backend.state", value }
    })?;
    Ok(Backend {
        id: backend.id.as_str().into(),
        incarnation: Incarnation(backend.incarnation),
        url: backend.url.into(),
        engine: EngineKind::from_name(&backend.engine).unwrap_or(EngineKind::Other),
        state,
        models: backend.models.into_iter().map(read_model).collect(),
        ranks: (backend.ranks.into_iter())
            .map(|rank| read_rank(rank, now))
            .collect::<Result<_, _>>()?,
        network,
        credential: backend.credential.map(Into::into),
    })
}

fn model(model: &ServedModel) -> wire::ServedModel {
    wire::ServedModel {
        id: model.id.to_string(),
        max_model_len: model.max_model_len,
        listing: model.listing.to_string(),
        parity: model.parity,
        base: model
            .base
            .as_ref()
            .map(|base| wire::Base { model: base.model.to_string(), adapter: base.adapter }),
    }
}

fn read_model(model: wire::ServedModel) -> ServedModel {
    ServedModel {
        id: ModelId::new(model.id),
        max_model_len: model.max_model_len,
        listing: model.listing.into(),
        parity: model.parity,
        base: model
            .base
            .map(|base| Base { model: ModelId::new(base.model), adapter: base.adapter }),
    }
}

fn rank_state(rank: &RankState, now: Moment) -> wire::RankState {
    wire::RankState {
        rank: rank.rank.into(),
        cache: rank.cache.map(|cache| wire::Cache {
            block_size: cache.block_size,
            usable_blocks: cache.usable_blocks,
            prefix_caching: cache.prefix_caching,
        }),
        slots: rank.slots,
        load: rank.load.map(|sample| load(&sample, now)),
    }
}

fn read_rank(rank: wire::RankState, now: Moment) -> Result<RankState, WireError> {
    Ok(RankState {
        rank: read_rank_number(rank.rank)?,
        cache: rank.cache.map(|cache| CacheConfig {
            block_size: cache.block_size,
            usable_blocks: cache.usable_blocks,
            prefix_caching: cache.prefix_caching,
        }),
        slots: rank.slots,
        load: rank.load.map(|sample| read_load(&sample, now)),
    })
}

/// A rank's number.
///
/// # Errors
/// There are no such ranks.
pub fn read_rank_number(rank: u32) -> Result<u16, WireError> {
    u16::try_from(rank)
        .map_err(|_| WireError::NotAllowed { field: "rank", value: rank.to_string() })
}

/// A sample, as old as it is at `now`.
pub fn load(sample: &LoadSample, now: Moment) -> wire::Load {
    wire::Load {
        age_millis: u32::try_from(now.since(sample.at).as_millis()).unwrap_or(u32::MAX),
        running: sample.running,
        waiting: sample.waiting,
        kv_usage: sample.kv_usage,
        preemptions: sample.preemptions,
        prefix_queries: sample.prefix_cache.map(|(queries, _)| queries),
        prefix_hits: sample.prefix_cache.map(|(_, hits)| hits),
        prefills: sample.prefills.map(|prefills| wire::Prefills {
            requests: prefills.requests,
            tokens: prefills.tokens,
            seconds: prefills.seconds,
        }),
    }
}

/// The sample of a message that came at `now`.
pub fn read_load(load: &wire::Load, now: Moment) -> LoadSample {
    let age = Duration::from_millis(load.age_millis.into());
    LoadSample {
        at: Moment::from_nanos(
            now.as_nanos().saturating_sub(u64::try_from(age.as_nanos()).unwrap_or(u64::MAX)),
        ),
        running: load.running,
        waiting: load.waiting,
        kv_usage: load.kv_usage,
        preemptions: load.preemptions,
        prefix_cache: load.prefix_queries.zip(load.prefix_hits),
        prefills: load.prefills.map(|prefills| PrefillCounters {
            requests: prefills.requests,
            tokens: prefills.tokens,
            seconds: prefills.seconds,
        }),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn backend_of(name: String, state: usize, load: Option<(u32, u32, Option<f64>)>) -> Backend {
        let sample = |(running, waiting, kv_usage)| LoadSample {
            at: Moment::from_nanos(5_000_000_000),
            running,
            waiting,
            kv_usage,
            preemptions: Some(3),
            prefix_cache: kv_usage.map(|_| (7, 5)),
            prefills: kv_usage.map(|seconds| PrefillCounters { requests: 7, tokens: 90, seconds }),
        };
        let cache = CacheConfig { block_size: 16, usable_blocks: 9, prefix_caching: true };
        Backend {
            id: name.as_str().into(),
            incarnation: Incarnation(u64::from(state as u32) << 40),
            url: "http://127.0.0.1:1".into(),
            engine: EngineKind::ALL[state % EngineKind::ALL.len()],
            state: BackendState::ALL[state % BackendState::ALL.len()],
            models: vec![ServedModel {
                id: name.as_str().into(),
                max_model_len: Some(4096),
                listing: "{}".into(),
                parity: Some(state.is_multiple_of(2)),
                base: Some(Base { model: "m".into(), adapter: true }),
            }],
            ranks: vec![RankState {
                rank: 3,
                cache: Some(cache),
                slots: None,
                load: load.map(sample),
            }],
            network: Duration::from_micros(250),
            credential: state.is_multiple_of(3).then(|| "gpus".into()),
        }
    }

    proptest! {
        #[test]
        fn a_backend_comes_back_as_it_was_with_its_loads_as_old(
            name in ".{1,20}", state in 0_usize..20, age in 0_u64..1_000_000,
            load in proptest::option::of((any::<u32>(), any::<u32>(), proptest::option::of(0.0..1.0))),
        ) {
            let sent = backend_of(name, state, load);
            let out = Moment::from_nanos(5_000_000_000) + Duration::from_millis(age);
            // The receiver's clock is another one.
            let came = Moment::from_nanos(99_000_000_000_000);
            let mut back = read_backend(backend(&sent, out), came).unwrap();
            for rank in &mut back.ranks {
                if let Some(load) = &mut rank.load {
                    prop_assert_eq!(came.since(load.at), Duration::from_millis(age));
                    load.at = Moment::from_nanos(5_000_000_000);
                }
            }
            prop_assert_eq!(back, sent);
        }
    }

    #[test]
    fn a_state_that_is_not_known_is_no_guess_and_another_engine_is_another_one() {
        let mut sent = backend(&backend_of("a".to_owned(), 0, None), Moment::ZERO);
        sent.engine = "of-the-future".to_owned();
        let read = read_backend(sent.clone(), Moment::ZERO).unwrap();
        assert_eq!(read.engine, EngineKind::Other);
        sent.state = "dancing".to_owned();
        assert!(read_backend(sent.clone(), Moment::ZERO).is_err());
        sent.state = "ready".to_owned();
        sent.ranks[0].rank = 70_000;
        assert!(read_backend(sent, Moment::ZERO).is_err());
    }
}
