use std::future::pending;
use std::sync::Arc;

use parking_lot::Mutex;

use super::*;
use crate::Readiness;

/// Notes in a shared list when it is dropped.
struct Dropped(&'static str, Arc<Mutex<Vec<&'static str>>>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.1.lock().push(self.0);
    }
}

fn metrics_of(lifecycle: &Lifecycle) -> String {
    let registry = Registry::new();
    lifecycle.register(&registry).unwrap();
    instrumentation::encode(&registry)
}

#[tokio::test(start_paused = true)]
async fn a_drain_lets_tasks_finish_what_they_are_in() {
    let lifecycle = Lifecycle::new();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (drain, note) = (lifecycle.drain(), Dropped("finished", seen.clone()));
    lifecycle.spawn("worker", async move {
        drain.signaled().await;
        tokio::time::sleep(Duration::from_secs(9)).await;
        drop(note);
    });
    assert!(!lifecycle.drain().is_draining());
    assert_eq!(lifecycle.shutdown(Duration::from_secs(10)).await, ShutdownOutcome::Clean);
    assert_eq!(*seen.lock(), ["finished"]);
    assert!(lifecycle.drain().is_draining());
}

#[tokio::test(start_paused = true)]
async fn tasks_past_the_limit_are_named_and_what_they_hold_is_dropped() {
    let lifecycle = Lifecycle::new();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let guard = Dropped("guard", seen.clone());
    lifecycle.spawn("stuck", async move {
        let _guard = guard;
        pending::<()>().await;
    });
    lifecycle.spawn("quick", async {});
    let outcome = lifecycle.shutdown(Duration::from_secs(5)).await;
    assert_eq!(outcome, ShutdownOutcome::Aborted(vec!["stuck"]));
    assert_eq!(*seen.lock(), ["guard"]);
    assert!(metrics_of(&lifecycle).contains(r#"warmpath_tasks_running{task="stuck"} 0"#));
}

#[tokio::test(start_paused = true)]
async fn background_tasks_are_told_to_finish_only_after_the_others() {
    let lifecycle = Lifecycle::new();
    let order = Arc::new(Mutex::new(Vec::new()));
    let (background, drain) = (lifecycle.background(), lifecycle.background().drain());
    let note = Dropped("background", order.clone());
    background.spawn("admin", async move {
        drain.signaled().await;
        drop(note);
    });
    let (drain, note) = (lifecycle.drain(), Dropped("foreground", order.clone()));
    let background_drain = background.drain();
    lifecycle.spawn("request", async move {
        drain.signaled().await;
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert!(!background_drain.is_draining());
        drop(note);
    });
    assert_eq!(lifecycle.shutdown(Duration::from_secs(10)).await, ShutdownOutcome::Clean);
    assert_eq!(*order.lock(), ["foreground", "background"]);
}

#[tokio::test]
async fn a_panic_ends_only_its_own_task_and_is_counted() {
    let lifecycle = Lifecycle::new();
    let (other, alive) = tokio::sync::oneshot::channel();
    let drain = lifecycle.drain();
    lifecycle.spawn("other", async move {
        drain.signaled().await;
        let _ = other.send(());
    });
    let failing = lifecycle.spawn("failing", async { panic!("for the test") });
    while !failing.is_finished() {
        tokio::task::yield_now().await;
    }
    assert_eq!(lifecycle.shutdown(Duration::from_secs(10)).await, ShutdownOutcome::Clean);
    assert!(alive.await.is_ok());
    let metrics = metrics_of(&lifecycle);
    assert!(metrics.contains(r#"warmpath_tasks_panicked_total{task="failing"} 1"#), "{metrics}");
    assert!(metrics.contains(r#"warmpath_tasks_running{task="failing"} 0"#), "{metrics}");
    assert!(!metrics.contains(r#"panicked_total{task="other"}"#), "{metrics}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_that_end_at_once_leave_nothing_behind() {
    let lifecycle = Lifecycle::new();
    for _ in 0..2_000 {
        lifecycle.spawn("short", async {});
    }
    let aborted = lifecycle.spawn("aborted", pending());
    aborted.abort();
    assert_eq!(lifecycle.shutdown(Duration::from_secs(10)).await, ShutdownOutcome::Clean);
    let metrics = metrics_of(&lifecycle);
    assert!(metrics.contains(r#"warmpath_tasks_running{task="short"} 0"#), "{metrics}");
    assert!(metrics.contains(r#"warmpath_tasks_running{task="aborted"} 0"#), "{metrics}");
}

#[tokio::test]
async fn readiness_needs_every_condition_and_ends_with_the_drain() {
    let lifecycle = Lifecycle::new();
    let readiness = Readiness::new(lifecycle.drain());
    assert!(readiness.is_ready());
    readiness.require("fleet");
    readiness.require("models");
    assert_eq!(readiness.missing(), ["fleet", "models"]);
    let clone = readiness.clone();
    clone.set("fleet", true);
    readiness.require("fleet");
    assert_eq!(readiness.missing(), ["models"], "requiring again does not undo");
    clone.set("models", true);
    assert!(readiness.is_ready());
    lifecycle.begin_drain();
    assert!(readiness.missing().is_empty() && !readiness.is_ready());
}

#[tokio::test]
async fn a_program_can_ask_for_its_own_end() {
    let lifecycle = Lifecycle::new();
    lifecycle.begin_drain();
    assert_eq!(lifecycle.run_until_signal(OnHangUp::End).await.unwrap(), Stop::Requested);
}

#[tokio::test(start_paused = true)]
async fn the_watch_for_a_second_signal_does_not_hold_up_the_end() {
    let lifecycle = Lifecycle::new();
    lifecycle.begin_drain();
    lifecycle.run_until_signal(OnHangUp::End).await.unwrap();
    let before = tokio::time::Instant::now();
    assert_eq!(lifecycle.shutdown(Duration::from_secs(9)).await, ShutdownOutcome::Clean);
    assert_eq!(before.elapsed(), Duration::ZERO);
}

/// Sends this process a signal.
fn signal_self(name: &str) {
    let kill = format!("kill -{name} {}", std::process::id());
    assert!(std::process::Command::new("sh").args(["-c", &kill]).status().unwrap().success());
}

#[tokio::test]
async fn a_hang_up_that_asks_for_a_reload_ends_nothing() {
    let lifecycle = Lifecycle::new();
    let mut hang_ups = HangUps::listen().unwrap();
    let mut run = Box::pin(lifecycle.run_until_signal(OnHangUp::Reload));
    assert!(futures_util::poll!(run.as_mut()).is_pending());
    for _ in 0..2 {
        signal_self("HUP");
        tokio::select! {
            () = hang_ups.next() => {}
            stop = &mut run => panic!("{stop:?}"),
        }
    }
    lifecycle.begin_drain();
    assert_eq!(run.await.unwrap(), Stop::Requested);
    // Neither is it a second signal.
    signal_self("HUP");
    hang_ups.next().await;
    assert_eq!(lifecycle.shutdown(Duration::from_secs(9)).await, ShutdownOutcome::Clean);
}

#[tokio::test]
async fn a_signal_to_end_or_a_closed_terminal_begins_the_drain() {
    for (name, stop) in [("TERM", Stop::Terminate), ("HUP", Stop::HangUp)] {
        let lifecycle = Lifecycle::new();
        let mut run = Box::pin(lifecycle.run_until_signal(OnHangUp::End));
        // The first poll installs the handlers; only then is it safe to send the signal.
        assert!(futures_util::poll!(run.as_mut()).is_pending());
        signal_self(name);
        assert_eq!(run.await.unwrap(), stop);
        assert!(lifecycle.drain().is_draining());
        // Ends the watch for a second signal, which the next one would be.
        assert_eq!(lifecycle.shutdown(Duration::from_secs(9)).await, ShutdownOutcome::Clean);
    }
}
