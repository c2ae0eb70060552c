//! The adapter of one process.

use std::sync::Arc;

use domain::{BoxFuture, BoxStream};
use futures_util::{StreamExt, stream};
use replication::{MemberList, Process, Renew};

use crate::{ConfigFeed, Event, FeedError, Hub, Position};

/// Reads a [`Hub`] of the same process.
#[derive(Clone)]
pub struct LocalFeed(Arc<Hub>);

impl LocalFeed {
    /// A feed of that hub.
    pub fn new(hub: Arc<Hub>) -> Self {
        Self(hub)
    }
}

impl ConfigFeed for LocalFeed {
    fn watch(&self, from: Position) -> BoxStream<'static, Result<Event, FeedError>> {
        stream::unfold(self.0.watch(from), |mut watch| async move {
            let frame = watch.next().await?;
            Some((Ok(frame.event.clone()), watch))
        })
        .boxed()
    }

    fn renew(&self, renew: Renew) -> BoxFuture<'_, Result<Option<MemberList>, FeedError>> {
        let answer = self.0.renew(renew, lifecycle::monotonic());
        Box::pin(async move { Ok(answer?) })
    }

    fn leave(&self, process: Process) -> BoxFuture<'_, Result<(), FeedError>> {
        self.0.leave(&process, lifecycle::monotonic());
        Box::pin(async move { Ok(()) })
    }
}
