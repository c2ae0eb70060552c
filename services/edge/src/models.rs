//! `/v1/models`: the union over ready backends, each model once, with the engine's own entry.

use bytes::{BufMut, Bytes, BytesMut};

use domain::{ErrorCode, ModelId};
use openai_api::ApiError;
use serde_json::{Map, Value};

use crate::aliases::Aliases;
use crate::fleet::FleetView;
use crate::tenant::Tenant;

/// The whole list, as far as the tenant may use it.
pub(crate) fn list(fleet: &FleetView, tenant: &Tenant, aliases: &Aliases) -> Bytes {
    let mut body = BytesMut::from(&b"{\"object\":\"list\",\"data\":["[..]);
    let allowed = fleet.models().filter(|m| tenant.may_use(m.id.as_str()));
    for (index, model) in allowed.enumerate() {
        if index > 0 {
            body.put_u8(b',');
        }
        body.put_slice(model.listing.as_bytes());
    }
    for (name, models) in served(fleet, tenant, aliases) {
        if body.last() != Some(&b'[') {
            body.put_u8(b',');
        }
        body.put_slice(entry_of(name, &models, fleet).as_bytes());
    }
    body.put_slice(b"]}");
    body.freeze()
}

/// One model by the name in the path, which may be percent-encoded.
pub(crate) fn one(
    fleet: &FleetView,
    tenant: &Tenant,
    aliases: &Aliases,
    name: &str,
) -> Option<Bytes> {
    let find = |name: &str| {
        let model = fleet.model(name).filter(|m| tenant.may_use(m.id.as_str()));
        let alias = || {
            let (name, models) =
                served(fleet, tenant, aliases).find(|(alias, _)| *alias == name)?;
            Some(entry_of(name, &models, fleet))
        };
        model.map(|model| model.listing.to_string()).or_else(alias)
    };
    find(name).or_else(|| find(&percent_decoded(name)?)).map(Bytes::from)
}

/// The aliases that the tenant may use and that no model is called by.
fn served<'a>(
    fleet: &'a FleetView,
    tenant: &'a Tenant,
    aliases: &'a Aliases,
) -> impl Iterator<Item = (&'a str, Vec<&'a ModelId>)> {
    let all = aliases.served(fleet);
    all.filter(|(name, _)| fleet.model(name).is_none() && tenant.may_use(name))
}

/// The entry of an alias: its first model's, under its own name, with that model as its root and
/// the shortest of all its models' lengths.
fn entry_of(name: &str, models: &[&ModelId], fleet: &FleetView) -> String {
    let views = models.iter().filter_map(|model| fleet.model(model.as_str()));
    let entries = views.map(|view| serde_json::from_str::<Map<String, Value>>(&view.listing));
    let entries: Vec<_> = entries.filter_map(Result::ok).collect();
    let longest = |entry: &Map<String, Value>| entry.get("max_model_len")?.as_u64();
    let shortest = entries.iter().filter_map(longest).min();
    let mut entry = entries.into_iter().next().unwrap_or_default();
    entry.insert("id".to_owned(), name.into());
    entry.insert("root".to_owned(), models.first().map(|model| model.as_str()).into());
    if let Some(shortest) = shortest {
        entry.insert("max_model_len".to_owned(), shortest.into());
    }
    Value::Object(entry).to_string()
}

/// The value of `model` in a query string, if it is there.
///
/// # Errors
/// It cannot be read, or is there twice: the engine gets the query as it is, and might read another
/// one of them.
pub(crate) fn named_in_query(query: &str) -> Result<Option<String>, ApiError> {
    let decoded = |text: &str| percent_decoded(&text.replace('+', "%20"));
    let pairs = query.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    let mut named = pairs.filter(|(key, _)| decoded(key).as_deref() == Some("model"));
    let Some((_, value)) = named.next() else { return Ok(None) };
    let refuse = |message| ApiError::new(ErrorCode::InvalidRequest, message).with_param("model");
    if named.next().is_some() {
        return Err(refuse("the query names a model twice; name it once: ?model=..."));
    }
    let name = decoded(value).ok_or_else(|| refuse("the model's name in the query is no text"))?;
    Ok(Some(name))
}

fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        if *first == b'%' {
            let high = char::from(*tail.first()?).to_digit(16)?;
            let low = char::from(*tail.get(1)?).to_digit(16)?;
            bytes.push(u8::try_from(high * 16 + low).ok()?);
            rest = &tail[2..];
        } else {
            bytes.push(*first);
            rest = tail;
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_paths_are_decoded_once() {
        assert_eq!(percent_decoded("a%2Fb").unwrap(), "a/b");
        assert_eq!(percent_decoded("a%252Fb").unwrap(), "a%2Fb");
        assert_eq!(percent_decoded("%C3%A9").unwrap(), "é");
        assert!(percent_decoded("%2").is_none());
        assert!(percent_decoded("%zz").is_none());
        assert!(percent_decoded("%ff").is_none());
        let named = |query| named_in_query(query).map_err(|error| error.code);
        assert_eq!(named("a=b&model=org%2Fm+1"), Ok(Some("org/m 1".to_owned())));
        assert_eq!(named("a=b&models=x&%zz=1"), Ok(None));
        for query in ["model=a&model=b", "model=a&mod%65l=b", "model=a&model", "model=%zz"] {
            assert_eq!(named(query), Err(ErrorCode::InvalidRequest), "{query}");
        }
    }
}
