//! Who is no member, and why.

use replication::{MOST_MEMBERS, Member, Objection, Role};

/// Why telemetry does not let somebody in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The secret is another one.
    #[error("the caller has another region's secret: give it and telemetry the same region.secret")]
    OtherRegion,
    /// No secret is shown.
    #[error(
        "the caller shows no secret of a region, as it is of an earlier version: edges and routers \
         are upgraded before telemetry is given region.secret"
    )]
    NoRegion,
    /// The name is none.
    #[error("a member's id has 1 to 64 letters, digits, `-` and `_`")]
    Name,
    /// Nobody could connect to that.
    #[error("a router's address is http://HOST:PORT or https://HOST:PORT; an edge has none")]
    Address,
    /// The list that it knows is not telemetry's.
    #[error(
        "the member knows a list that no telemetry of this region can have issued: it has to be \
         started again"
    )]
    ForeignEpoch,
    /// Another process of that name is a member, and began later.
    #[error(
        "another process has this one's member.id and began later: give each edge and router a \
         name of its own"
    )]
    NameTaken,
    /// There is no room.
    #[error("there are {MOST_MEMBERS} members, and no more are taken")]
    Full,
}

impl Refusal {
    pub(crate) const ALL: [Self; 7] = [
        Self::OtherRegion,
        Self::NoRegion,
        Self::Name,
        Self::Address,
        Self::ForeignEpoch,
        Self::NameTaken,
        Self::Full,
    ];

    /// As it is counted.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::OtherRegion => "other_region",
            Self::NoRegion => "no_region",
            Self::Name => "name",
            Self::Address => "address",
            Self::ForeignEpoch => "foreign_epoch",
            Self::NameTaken => "name_taken",
            Self::Full => "full",
        }
    }
}

impl From<Objection> for Refusal {
    fn from(objection: Objection) -> Self {
        match objection {
            Objection::ForeignEpoch => Self::ForeignEpoch,
            Objection::Full => Self::Full,
        }
    }
}

/// Checks what everybody would go by once it is on the list.
pub(crate) fn check(member: &Member) -> Result<(), Refusal> {
    if !member.process.id.is_plain() {
        return Err(Refusal::Name);
    }
    let is_reachable = rpc::is_address(&member.address);
    match member.role {
        Role::Router if !is_reachable => Err(Refusal::Address),
        Role::Edge if !member.address.is_empty() && !is_reachable => Err(Refusal::Address),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use domain::Incarnation;
    use replication::Process;

    use super::*;

    fn checked(id: &str, role: Role, address: &str) -> Result<(), Refusal> {
        let process = Process { id: id.into(), incarnation: Incarnation(1) };
        check(&Member { process, role, address: address.into() })
    }

    #[test]
    fn only_plain_names_and_addresses_that_can_be_called_are_listed() {
        for address in
            ["http://127.0.0.1:1", "https://router-0.region.example:7402", "http://[::1]:9"]
        {
            assert_eq!(checked("router-0", Role::Router, address), Ok(()), "{address}");
        }
        assert_eq!(checked("edge_0", Role::Edge, ""), Ok(()));
        let long = format!("http://{}:1", "n".repeat(900));
        let odd =
            ["", "x", "http://a", "ftp://a:1", "http://a:1/p", "http://u@a:1", "http://:1", &long];
        for address in odd {
            let refused = Err(Refusal::Address);
            assert_eq!(checked("router-0", Role::Router, address), refused, "{address}");
            let of_edge = if address.is_empty() { Ok(()) } else { refused };
            assert_eq!(checked("edge-0", Role::Edge, address), of_edge, "{address}");
        }
        for id in ["", "a b", "a\n", "a.b", "\u{1b}[31m", &"n".repeat(65)] {
            assert_eq!(checked(id, Role::Edge, ""), Err(Refusal::Name), "{id:?}");
        }
    }
}
