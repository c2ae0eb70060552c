//! Lists, a page at a time.

use config_store::Revision;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// Entries on a page, unless told otherwise, and at most.
pub(super) const PAGE: u16 = 1000;

/// Which part of a list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub(super) struct PageQuery {
    /// Begin behind this id: the `next` of the page before.
    pub(super) after: Option<String>,
    /// Entries at most.
    #[param(minimum = 1, maximum = 1000, default = 1000)]
    pub(super) limit: Limit,
}

impl Default for PageQuery {
    fn default() -> Self {
        Self { after: None, limit: Limit(PAGE) }
    }
}

/// How many entries: 1 to 1000.
#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(try_from = "u16")]
#[schema(value_type = u16)]
pub(super) struct Limit(u16);

impl Limit {
    pub(super) fn get(self) -> usize {
        usize::from(self.0)
    }
}

impl Default for Limit {
    fn default() -> Self {
        Self(PAGE)
    }
}

impl TryFrom<u16> for Limit {
    type Error = &'static str;

    fn try_from(value: u16) -> Result<Self, Self::Error> {
        if (1..=PAGE).contains(&value) { Ok(Self(value)) } else { Err("1 to 1000 is allowed") }
    }
}

/// A part of a list.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Page<V> {
    /// The entries, by id.
    pub(super) items: Vec<V>,
    /// Where the next page begins; absent on the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) next: Option<String>,
    /// The revision of the store that the list is of.
    pub(super) revision: u64,
}

impl PageQuery {
    /// Cuts the page out of all entries, which are in the order of their ids.
    pub(super) fn cut<T, V>(
        &self,
        revision: Revision,
        mut all: Vec<T>,
        id: impl Fn(&T) -> &str,
        view: impl Fn(T) -> V,
    ) -> Page<V> {
        all.sort_by(|a, b| id(a).cmp(id(b)));
        let from = match &self.after {
            Some(after) => all.partition_point(|entry| id(entry) <= after.as_str()),
            None => 0,
        };
        let to = all.len().min(from + self.limit.get());
        let next = (to < all.len() && to > from).then(|| id(&all[to - 1]).to_owned());
        let items = all.drain(from..to).map(view).collect();
        Page { items, next, revision: revision.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_follow_each_other_without_gap_or_repeat() {
        let all: Vec<String> = (0..10).map(|i| format!("b{i}")).collect();
        let (mut seen, mut after) = (Vec::new(), None);
        loop {
            let query = PageQuery { after, limit: Limit(3) };
            let page = query.cut(Revision(1), all.clone(), String::as_str, |id| id);
            assert!(page.items.len() <= 3);
            seen.extend(page.items);
            let Some(next) = page.next else { break };
            after = Some(next);
        }
        assert_eq!(seen, all);
    }
}
