//! The observed state of all backends as one value, published when something changed.
//!
//! Each backend has a *seat*. The prober of a seat says what it sees; the operator's wish decides
//! with it what is shown. A prober whose seat was taken away is not heard any more, so a backend
//! that was removed stays removed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use domain::desired::LifecycleWish;
use domain::{Backend, BackendId, BackendState, Fleet};
use lifecycle::Drain;
use parking_lot::Mutex;
use prometheus::{IntGauge, IntGaugeVec};
use tokio::sync::{Notify, watch};

/// Changes within so long of a publication go out together. A thousand backends whose load is
/// read every second would otherwise make a thousand fleets of a thousand.
const GATHER: Duration = Duration::from_millis(50);

/// Names one seat for the life of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SeatNumber(u64);

/// Where the probers of all backends leave what they saw.
pub(crate) struct Publisher {
    seats: Mutex<Seats>,
    changed: Notify,
    fleet: watch::Sender<Arc<Fleet>>,
    /// Whether every backend that was known at the start has been probed.
    whole: watch::Sender<bool>,
    revision: IntGauge,
    states: IntGaugeVec,
}

#[derive(Default)]
struct Seats {
    by_id: BTreeMap<BackendId, Seat>,
    next: u64,
    /// Everything that is wanted at the start has a seat.
    complete: bool,
}

struct Seat {
    number: SeatNumber,
    wish: LifecycleWish,
    probed: bool,
    /// As its prober sees it.
    seen: Arc<Backend>,
    /// As everybody is told: the same, but for a state that the operator wants otherwise.
    shown: Arc<Backend>,
}

impl Publisher {
    pub(crate) fn new(revision: IntGauge, states: IntGaugeVec) -> Self {
        Self {
            seats: Mutex::default(),
            changed: Notify::new(),
            fleet: watch::Sender::new(Arc::new(Fleet::default())),
            whole: watch::Sender::new(false),
            revision,
            states,
        }
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<Arc<Fleet>> {
        self.fleet.subscribe()
    }

    /// Turns true once every backend that was known at the start has been probed.
    pub(crate) fn whole(&self) -> watch::Receiver<bool> {
        self.whole.subscribe()
    }

    /// Gives a backend a seat, in place of the one that it may have.
    pub(crate) fn admit(&self, backend: Backend, wish: LifecycleWish) -> SeatNumber {
        let mut seats = self.seats.lock();
        seats.next += 1;
        let number = SeatNumber(seats.next);
        let seen = Arc::new(backend);
        let shown = shown(&seen, wish);
        self.show_state(&shown);
        let seat = Seat { number, wish, probed: false, seen, shown };
        seats.by_id.insert(seat.seen.id.clone(), seat);
        drop(seats);
        self.changed.notify_one();
        number
    }

    /// Takes a seat away. The fleet without it is published before this returns.
    pub(crate) fn remove(&self, id: &BackendId) {
        let mut seats = self.seats.lock();
        if seats.by_id.remove(id).is_none() {
            return;
        }
        forget_states(&self.states, id);
        self.look_whether_whole(&seats);
        self.publish(&seats);
    }

    /// What the operator wants of a backend from now on. It is published before this returns.
    pub(crate) fn wish(&self, id: &BackendId, wish: LifecycleWish) {
        let mut seats = self.seats.lock();
        let Some(seat) = seats.by_id.get_mut(id) else { return };
        seat.wish = wish;
        seat.shown = shown(&seat.seen, wish);
        self.show_state(&seat.shown);
        self.publish(&seats);
    }

    /// What was seen of a backend last.
    pub(crate) fn last(&self, id: &BackendId) -> Option<Arc<Backend>> {
        self.seats.lock().by_id.get(id).map(|seat| seat.seen.clone())
    }

    /// What is wanted of a backend.
    pub(crate) fn wished(&self, id: &BackendId) -> Option<LifecycleWish> {
        self.seats.lock().by_id.get(id).map(|seat| seat.wish)
    }

    /// A backend as it is now. Nothing happens if that is as it was, or if the seat is gone.
    pub(crate) fn update(&self, number: SeatNumber, backend: Backend) {
        let mut seats = self.seats.lock();
        let Some(seat) = seats.by_id.get_mut(&backend.id).filter(|seat| seat.number == number)
        else {
            return;
        };
        let first = !std::mem::replace(&mut seat.probed, true);
        let differs = *seat.seen != backend;
        if differs {
            seat.seen = Arc::new(backend);
            seat.shown = shown(&seat.seen, seat.wish);
            self.show_state(&seat.shown);
        }
        if first {
            self.look_whether_whole(&seats);
        }
        drop(seats);
        if differs {
            self.changed.notify_one();
        }
    }

    /// Everything that is wanted at the start has a seat.
    pub(crate) fn complete(&self) {
        let mut seats = self.seats.lock();
        seats.complete = true;
        self.look_whether_whole(&seats);
    }

    /// Waits no longer for backends that were not probed yet.
    pub(crate) fn settle(&self) {
        self.whole.send_if_modified(|whole| !std::mem::replace(whole, true));
    }

    /// Publishes changes until the drain.
    pub(crate) async fn run(&self, drain: &Drain) {
        loop {
            tokio::select! {
                () = drain.signaled() => return,
                () = self.changed.notified() => self.publish(&self.seats.lock()),
            }
            tokio::select! {
                () = drain.signaled() => return,
                () = tokio::time::sleep(GATHER) => {}
            }
        }
    }

    /// Publishes what is in the seats. They are locked meanwhile, so that no older fleet follows
    /// a newer one.
    fn publish(&self, seats: &Seats) {
        let backends: Vec<_> = seats.by_id.values().map(|seat| seat.shown.clone()).collect();
        self.fleet.send_modify(|fleet| {
            *fleet = Arc::new(Fleet { revision: fleet.revision + 1, backends });
            self.revision.set(i64::try_from(fleet.revision).unwrap_or(i64::MAX));
        });
    }

    fn look_whether_whole(&self, seats: &Seats) {
        if !*self.whole.borrow() && seats.complete && seats.by_id.values().all(|seat| seat.probed) {
            // What was seen is published first: who waits for this reads the fleet next.
            self.publish(seats);
            self.settle();
        }
    }

    fn show_state(&self, backend: &Backend) {
        for state in BackendState::ALL {
            let gauge = self.states.with_label_values(&[backend.id.as_str(), state.as_str()]);
            gauge.set(i64::from(state == backend.state));
        }
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        for id in self.seats.get_mut().by_id.keys() {
            forget_states(&self.states, id);
        }
    }
}

fn forget_states(states: &IntGaugeVec, id: &BackendId) {
    for state in BackendState::ALL {
        // A series that was never touched is not there: nothing to do about it.
        let _ = states.remove_label_values(&[id.as_str(), state.as_str()]);
    }
}

/// A backend as it is shown: the operator's wish outranks what probes say.
fn shown(seen: &Arc<Backend>, wish: LifecycleWish) -> Arc<Backend> {
    let state = match wish {
        LifecycleWish::Ready => return seen.clone(),
        LifecycleWish::Draining => BackendState::Draining,
        LifecycleWish::Maintenance => BackendState::Maintenance,
    };
    Arc::new(Backend { state, ..(**seen).clone() })
}

#[cfg(test)]
mod tests;
