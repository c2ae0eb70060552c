//! One load: the subjects side by side, a few hundred requests each in turn.

use std::time::Duration;

use serde::Serialize;
use sim::index_load::IndexLoad;

use crate::allocator::live_bytes;
use crate::ops::{Fleet, Op};
use crate::subjects::{self, Request, Subject};

/// Requests of a warm pass that one subject serves before it is the next one's turn; so few that
/// their events take little memory. The last warm pass and the measured one are one turn: cut into
/// shorter ones, every subject would begin each of them with the others' data in the CPU's caches,
/// and the larger an index is, the more that costs it.
const WARM_TURN: usize = 500;

/// Requests after which all subjects must name the same holders.
const CHECKED: [usize; 4] = [7, 1_903, 6_011, 11_777];

/// A load, as the tables name it.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Spec {
    pub name: &'static str,
    pub workers: usize,
    pub capacity_blocks: usize,
    /// Blocks that every block of the trace is cut into.
    pub cut: u32,
    pub warm_passes: usize,
}

/// The loads of the comparison.
pub const SPECS: [Spec; 4] = [
    Spec { name: "10-ranks", workers: 10, capacity_blocks: 10_000, cut: 1, warm_passes: 1 },
    Spec { name: "1000-ranks", workers: 1_000, capacity_blocks: 10_000, cut: 1, warm_passes: 36 },
    Spec { name: "7000-ranks", workers: 7_000, capacity_blocks: 10_000, cut: 1, warm_passes: 1 },
    Spec { name: "16-tokens", workers: 100, capacity_blocks: 10_000, cut: 32, warm_passes: 1 },
];

/// One subject in one round.
#[derive(Clone, Debug, Serialize)]
pub struct Figure {
    pub subject: &'static str,
    pub requests_per_second: f64,
    /// Allocator bytes after the warm passes, per block and worker that holds it.
    pub bytes_per_entry: f64,
}

/// A subject with what was measured of it.
struct Entrant {
    subject: Box<dyn Subject>,
    bytes: isize,
    spent: Duration,
}

/// Runs a load once, from empty indexes.
pub fn round(spec: &Spec, load: &IndexLoad, only: Option<&str>) -> (usize, Vec<Figure>) {
    let mut entrants = enter(spec, load);
    if let Some(only) = only {
        entrants.retain(|entrant| entrant.subject.name() == only);
    }
    let mut fleet = Fleet::new(spec.workers, spec.capacity_blocks);
    for _ in 1..spec.warm_passes {
        pass(&mut fleet, load, WARM_TURN, |requests| {
            for entrant in &mut entrants {
                let before = live_bytes() as isize;
                entrant.subject.prepare(requests);
                entrant.subject.run();
                entrant.bytes += live_bytes() as isize - before;
            }
        });
    }
    let last_warm = whole_pass(&mut fleet, load);
    let entries = fleet.entries();
    let measured = whole_pass(&mut fleet, load);
    for entrant in &mut entrants {
        let before = live_bytes() as isize;
        entrant.subject.prepare(&of(&last_warm, load));
        let inputs = live_bytes() as isize;
        entrant.subject.prepare(&of(&measured, load));
        let inputs = live_bytes() as isize - inputs;
        entrant.subject.run();
        entrant.bytes += live_bytes() as isize - before - inputs;
        entrant.spent += entrant.subject.run();
    }
    check(&mut entrants, load);
    let figure = |entrant: &Entrant| Figure {
        subject: entrant.subject.name(),
        requests_per_second: load.len() as f64 / entrant.spent.as_secs_f64(),
        bytes_per_entry: entrant.bytes as f64 / entries as f64,
    };
    (entries, entrants.iter().map(figure).collect())
}

fn enter(spec: &Spec, load: &IndexLoad) -> Vec<Entrant> {
    subjects::all(load, spec.workers, spec.capacity_blocks)
        .into_iter()
        .map(|subject| Entrant { subject, bytes: 0, spent: Duration::ZERO })
        .collect()
}

/// Every request of the load once, handed out by turns.
fn pass(fleet: &mut Fleet, load: &IndexLoad, turn: usize, mut serve: impl FnMut(&[Request<'_>])) {
    for first in (0..load.len()).step_by(turn) {
        let last = (first + turn).min(load.len());
        let ops: Vec<Op> = (first..last).map(|n| fleet.op(n, load.prompt(n))).collect();
        serve(&of(&ops, load));
    }
}

/// What the workers' caches do in one pass over the load.
fn whole_pass(fleet: &mut Fleet, load: &IndexLoad) -> Vec<Op> {
    (0..load.len()).map(|n| fleet.op(n, load.prompt(n))).collect()
}

fn of<'a>(ops: &'a [Op], load: &'a IndexLoad) -> Vec<Request<'a>> {
    ops.iter().map(|op| Request { op, prompt: load.prompt(op.request) }).collect()
}

/// All must agree, or the comparison compares different things.
fn check(entrants: &mut [Entrant], load: &IndexLoad) {
    for request in CHECKED.into_iter().filter(|request| *request < load.len()) {
        let prompt = load.prompt(request);
        let mut first: Option<Vec<(u32, u32)>> = None;
        for entrant in &mut *entrants {
            let holders = entrant.subject.holders(prompt);
            let expected = first.get_or_insert_with(|| holders.clone());
            assert_eq!(&holders, expected, "{}, request {request}", entrant.subject.name());
        }
    }
}
