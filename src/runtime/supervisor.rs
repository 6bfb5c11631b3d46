//! Who may end, and what follows: a core thread that ends early ends the process, an edge task is built anew.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{error, info};

use crate::model::Millis;

/// Waits between two lives of an edge task, in order; the last one repeats.
const REBUILD_AFTER: [Duration; 4] =
    [Duration::from_millis(500), Duration::from_secs(2), Duration::from_secs(10), Duration::from_secs(30)];

/// Runs an edge task until `shutdown`; if it ends or panics before that, it is built anew after a while.
///
/// `report` is told `Err(reason)` when a life ended and `Ok(())` when the next one begins.
pub async fn keep<F, T>(
    name: &'static str,
    shutdown: CancellationToken,
    report: impl Fn(Result<(), String>),
    mut build: F,
) where
    F: FnMut() -> T,
    T: Future<Output = ()> + Send + 'static,
{
    for life in 0_usize.. {
        let mut task = JoinSet::new();
        task.spawn(build());
        report(Ok(()));
        let ended = task.join_next().await;
        if shutdown.is_cancelled() {
            return;
        }
        let reason = match ended {
            Some(Err(panic)) => format!("{name} panicked: {panic}"),
            _ => format!("{name} ended early"),
        };
        error!(task = name, reason, "an edge task ended; it is built anew");
        report(Err(reason));
        let wait = REBUILD_AFTER.get(life).or(REBUILD_AFTER.last()).copied().unwrap_or_default();
        tokio::select! {
            () = tokio::time::sleep(wait) => info!(task = name, "building an edge task anew"),
            () = shutdown.cancelled() => return,
        }
    }
}

/// A sign of life of a core thread, read by the watchdog.
#[derive(Debug, Clone, Default)]
pub struct Heartbeat(Arc<AtomicU64>);

impl Heartbeat {
    /// The thread came by at `now`.
    pub fn beat(&self, now: Millis) {
        self.0.store(now.0, Ordering::Relaxed);
    }

    /// Time since it came by last.
    pub fn age(&self, now: Millis) -> Duration {
        now.since(Millis(self.0.load(Ordering::Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[tokio::test]
    async fn an_edge_task_that_panics_is_built_anew_and_reported() {
        let (lives, failures) = (Arc::new(AtomicUsize::new(0)), AtomicUsize::new(0));
        let shutdown = CancellationToken::new();
        let build = || {
            let (lives, shutdown) = (lives.clone(), shutdown.clone());
            async move {
                assert!(lives.fetch_add(1, Ordering::SeqCst) > 0, "the first life panics");
                shutdown.cancel();
            }
        };
        let report = |state: Result<(), String>| {
            failures.fetch_add(usize::from(state.is_err()), Ordering::SeqCst);
        };
        keep("probe", shutdown.clone(), report, build).await;
        assert_eq!((lives.load(Ordering::SeqCst), failures.load(Ordering::SeqCst)), (2, 1));
    }

    #[test]
    fn a_heartbeat_ages() {
        let heart = Heartbeat::default();
        heart.beat(Millis(1000));
        assert_eq!(heart.age(Millis(4500)), Duration::from_millis(3500));
    }
}
