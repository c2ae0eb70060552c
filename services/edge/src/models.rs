//! `/v1/models`: the union over ready backends, each model once, with the engine's own entry.

use bytes::{BufMut, Bytes, BytesMut};

use crate::fleet::{FleetView, ModelView};
use crate::tenant::Tenant;

/// The whole list, as far as the tenant may use it.
pub(crate) fn list(fleet: &FleetView, tenant: &Tenant) -> Bytes {
    let mut body = BytesMut::from(&b"{\"object\":\"list\",\"data\":["[..]);
    let allowed = fleet.models().filter(|m| tenant.may_use(m.id.as_str()));
    for (index, model) in allowed.enumerate() {
        if index > 0 {
            body.put_u8(b',');
        }
        body.put_slice(model.listing.as_bytes());
    }
    body.put_slice(b"]}");
    body.freeze()
}

/// One model by the name in the path, which may be percent-encoded.
pub(crate) fn one(fleet: &FleetView, tenant: &Tenant, name: &str) -> Option<Bytes> {
    let find = |name: &str| fleet.model(name).filter(|m| tenant.may_use(m.id.as_str()));
    let model: &ModelView = match find(name) {
        Some(model) => model,
        None => find(&percent_decoded(name)?)?,
    };
    Some(Bytes::copy_from_slice(model.listing.as_bytes()))
}

/// The value of `model` in a query string.
pub(crate) fn named_in_query(query: &str) -> Option<String> {
    let value = query.split('&').find_map(|pair| pair.strip_prefix("model="))?;
    percent_decoded(&value.replace('+', "%20"))
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
        assert_eq!(named_in_query("a=b&model=org%2Fm+1").unwrap(), "org/m 1");
        assert_eq!(named_in_query("a=b&models=x"), None);
    }
}
