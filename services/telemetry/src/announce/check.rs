//! Whether an announcement may be acted on. Pure: the time is an argument.

use std::collections::HashMap;
use std::net::IpAddr;

use domain::EngineKind;
use domain::desired::{Backend, Document, JoinToken};
use events::{Announcement, Envelope, Region, Verdict};

/// How far the clocks of an engine's machine and of ours may be apart, in milliseconds, the time
/// on the bus included.
pub(super) const WINDOW_MS: u64 = 30_000;

/// Nonces that are remembered: a thousand engines leave 12,000 in the window's two halves.
const MOST_NONCES: usize = 1 << 16;

/// Why an announcement is not acted on.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) verdict: Verdict,
    pub(super) detail: String,
}

impl Refusal {
    pub(super) fn new(verdict: Verdict, detail: impl Into<String>) -> Self {
        Self { verdict, detail: detail.into() }
    }
}

/// Announcements that were heard in the window, by their nonces.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// When each was signed, in milliseconds since 1970.
    nonces: HashMap<String, u64>,
}

impl Seen {
    /// Takes a nonce down; `false` if it is there, or there is no room.
    fn take_down(&mut self, nonce: &str, at_ms: u64, now_ms: u64) -> bool {
        if self.nonces.len() >= MOST_NONCES {
            // Older ones are refused by their time.
            self.nonces.retain(|_, at| *at + WINDOW_MS >= now_ms);
        }
        let room = self.nonces.len() < MOST_NONCES && !self.nonces.contains_key(nonce);
        if room {
            self.nonces.insert(nonce.to_owned(), at_ms);
        }
        room
    }
}

/// Checks signature, form, region, time and scope.
pub(super) fn check(
    envelope: &Envelope,
    token: &JoinToken,
    region: &Region,
    seen: &mut Seen,
    now_ms: u64,
) -> Result<Announcement, Refusal> {
    let no = |verdict, detail: &str| Err(Refusal::new(verdict, detail));
    if !envelope.is_signed_by(&token.public_key) {
        return no(Verdict::Unsigned, "the signature is not of this token");
    }
    let Ok(said) = envelope.open() else {
        return no(Verdict::Invalid, "the body is not of its form");
    };
    if said.region != region.name() {
        return no(Verdict::OtherRegion, &format!("this is region {}", region.name()));
    }
    if token.expires_at_ms <= now_ms {
        return no(Verdict::Expired, "the token's time is over");
    }
    if said.at_ms.abs_diff(now_ms) > WINDOW_MS {
        return no(Verdict::Replayed, "it was signed too long ago, or the clocks are apart");
    }
    if said.nonce.len() != 32 || !said.nonce.bytes().all(|b| b.is_ascii_hexdigit()) {
        return no(Verdict::Invalid, "nonce: 32 hex digits are needed");
    }
    let document = document(&said, &token.id)?;
    if let Err(error) = document.validate() {
        return no(Verdict::Invalid, &error.to_string());
    }
    within(&said.url, token)?;
    if said.credential.is_some() && token.addresses.is_empty() {
        // The key would be sent wherever the token's holder says.
        let detail = "credential: only tokens with ranges of addresses may ask for one";
        return no(Verdict::OutOfScope, detail);
    }
    if !seen.take_down(&said.nonce, said.at_ms, now_ms) {
        return no(Verdict::Replayed, "it was heard before");
    }
    Ok(said)
}

/// The backend that an announcement asks for.
pub(super) fn document(said: &Announcement, token: &str) -> Result<Backend, Refusal> {
    let engine = said.engine.as_deref().map(engine_kind).transpose()?;
    Ok(Backend {
        id: said.backend.as_str().into(),
        url: said.url.clone(),
        engine,
        credential: said.credential.clone(),
        wish: domain::desired::LifecycleWish::Ready,
        announced: Some(domain::desired::Announced { token: token.to_owned(), withdrawn: false }),
        unknown: domain::desired::UnknownFields::new(),
    })
}

fn engine_kind(name: &str) -> Result<EngineKind, Refusal> {
    let all = [EngineKind::Vllm, EngineKind::Sglang, EngineKind::LlamaCpp, EngineKind::Other];
    let known = all.into_iter().find(|kind| kind.as_str() == name);
    known.ok_or_else(|| Refusal::new(Verdict::Invalid, "engine: it is not known"))
}

/// Whether the URL's host is in the token's ranges. A name of a host is in none: whoever answers
/// for it could answer otherwise later.
fn within(url: &str, token: &JoinToken) -> Result<(), Refusal> {
    let (_, authority) = crate::config::parse_url(url)
        .map_err(|message| Refusal::new(Verdict::Invalid, format!("url: {message}")))?;
    let host = authority.host();
    if token.addresses.is_empty() {
        return Ok(());
    }
    let address: Result<IpAddr, _> = host.trim_matches(['[', ']']).parse();
    match address {
        Ok(address) if token.covers(address) => Ok(()),
        Ok(_) => Err(Refusal::new(Verdict::OutOfScope, "url: the address is not in its ranges")),
        Err(_) => {
            let detail = "url: the token is for ranges of addresses, so an address is needed";
            Err(Refusal::new(Verdict::OutOfScope, detail))
        }
    }
}

#[cfg(test)]
mod tests {
    use credentials::{JoinKey, MintedToken};
    use events::Phase;

    use super::*;

    const NOW: u64 = 1_000_000_000;

    struct Holder {
        key: JoinKey,
        token: JoinToken,
        region: Region,
        seen: Seen,
    }

    impl Holder {
        fn new() -> Self {
            let minted = MintedToken::generate("rack-1").unwrap();
            let token = JoinToken {
                id: "rack-1".to_owned(),
                public_key: minted.public_key_hex().to_owned(),
                model: None,
                addresses: vec!["10.0.0.0/8".parse().unwrap(), "fd00::/8".parse().unwrap()],
                expires_at_ms: NOW + 1,
                unknown: Default::default(),
            };
            let key = JoinKey::parse(minted.secret_text()).unwrap();
            let region = Region::new("eu").unwrap();
            Self { key, token, region, seen: Seen::default() }
        }

        fn check(&mut self, change: impl FnOnce(&mut Announcement)) -> Option<Verdict> {
            let nonce = format!("{:032x}", self.seen.nonces.len());
            let mut said = Announcement {
                region: "eu".to_owned(),
                backend: "a".to_owned(),
                url: "http://10.0.0.7:8000".to_owned(),
                engine: None,
                credential: None,
                phase: Phase::Here,
                at_ms: NOW,
                nonce,
            };
            change(&mut said);
            let sealed = Envelope::seal(&said, &self.key);
            let checked = check(&sealed, &self.token, &self.region, &mut self.seen, NOW);
            checked.err().map(|refusal| refusal.verdict)
        }
    }

    #[test]
    fn only_what_the_tokens_holder_signed_in_time_and_scope_passes() {
        let mut holder = Holder::new();
        assert_eq!(holder.check(|_| ()), None);
        assert_eq!(holder.check(|a| a.url = "http://[fd00::7]:8000".to_owned()), None);
        type Change = fn(&mut Announcement);
        let cases: [(Change, Verdict); 11] = [
            (|a| a.region = "us".to_owned(), Verdict::OtherRegion),
            (|a| a.at_ms = NOW - WINDOW_MS - 1, Verdict::Replayed),
            (|a| a.at_ms = NOW + WINDOW_MS + 1, Verdict::Replayed),
            (|a| a.nonce = "0".repeat(32), Verdict::Replayed),
            (|a| a.nonce = "x".repeat(32), Verdict::Invalid),
            (|a| a.backend = "a b".to_owned(), Verdict::Invalid),
            (|a| a.engine = Some("gguf".to_owned()), Verdict::Invalid),
            (|a| a.url = "http://10.0.0.7:99999".to_owned(), Verdict::Invalid),
            (|a| a.url = "http://192.168.0.7:8000".to_owned(), Verdict::OutOfScope),
            (|a| a.url = "http://gpu-0:8000".to_owned(), Verdict::OutOfScope),
            (|a| a.url = "http://10.0.0.7:8000/v1".to_owned(), Verdict::Invalid),
        ];
        for (change, verdict) in cases {
            assert_eq!(holder.check(change), Some(verdict));
        }
    }

    #[test]
    fn only_a_token_with_ranges_gives_an_engine_a_key_of_ours() {
        let mut holder = Holder::new();
        let asks = |a: &mut Announcement| a.credential = Some("gpus".to_owned());
        assert_eq!(holder.check(asks), None);
        holder.token.addresses.clear();
        assert_eq!(holder.check(|_| ()), None);
        assert_eq!(holder.check(asks), Some(Verdict::OutOfScope));
    }

    #[test]
    fn a_token_that_is_over_or_another_one_is_refused() {
        let mut holder = Holder::new();
        holder.token.expires_at_ms = NOW;
        assert_eq!(holder.check(|_| ()), Some(Verdict::Expired));
        let mut other = Holder::new();
        other.key = Holder::new().key;
        assert_eq!(other.check(|_| ()), Some(Verdict::Unsigned));
    }

    #[test]
    fn nonces_are_forgotten_only_when_their_time_is_over() {
        let mut seen = Seen::default();
        for n in 0..MOST_NONCES {
            assert!(seen.take_down(&n.to_string(), NOW, NOW));
        }
        assert!(!seen.take_down("one more", NOW, NOW), "no room, and none is forgotten for it");
        assert!(seen.take_down("later", NOW + WINDOW_MS + 1, NOW + WINDOW_MS + 1));
        assert_eq!(seen.nonces.len(), 1);
    }
}
