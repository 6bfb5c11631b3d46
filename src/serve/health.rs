//! Health: named checks that the wiring sets, and the text of `/livez` and `/readyz`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Named checks, each good or bad with its reason. Shared; the lock is held for a few instructions.
///
/// A new one holds the check [`Health::START`], which is bad until the wiring says otherwise: the gateway is not ready
/// before it says so, and the served API answers 503 until then.
#[derive(Debug)]
pub struct Health {
    checks: Mutex<BTreeMap<&'static str, Result<(), String>>>,
}

impl Health {
    /// The check that opens the served API: `health.set(Health::START, Ok(()))`.
    pub const START: &'static str = "start";

    /// Health of a gateway that has not started.
    pub fn new() -> Self {
        let start = (Self::START, Err("the gateway is starting".to_owned()));
        Self { checks: Mutex::new(BTreeMap::from([start])) }
    }

    /// Says how `check` stands; a bad one makes the gateway not ready, with this reason.
    pub fn set(&self, check: &'static str, outcome: Result<(), String>) {
        self.lock().insert(check, outcome);
    }

    /// Takes a check out, as when its sink is gone.
    pub fn remove(&self, check: &str) {
        self.lock().remove(check);
    }

    /// True if every check is good.
    pub fn is_ready(&self) -> bool {
        self.lock().values().all(Result::is_ok)
    }

    /// All checks by name.
    pub fn checks(&self) -> Vec<(&'static str, Result<(), String>)> {
        self.lock().iter().map(|(name, outcome)| (*name, outcome.clone())).collect()
    }

    /// True once the check [`Health::START`] is good.
    pub(super) fn has_started(&self) -> bool {
        matches!(self.lock().get(Self::START), Some(Ok(())))
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<&'static str, Result<(), String>>> {
        // The map is whole after each single call, also if a holder panicked.
        self.checks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for Health {
    fn default() -> Self {
        Self::new()
    }
}

/// The answer of a health path as an API server words it: `ok` alone if all is well and `verbose` is not asked for,
/// else one line a check. The flag is true if every check is good.
pub(super) fn report(path: &str, checks: &[(&'static str, Result<(), String>)], verbose: bool) -> (bool, String) {
    let good = checks.iter().all(|(_, outcome)| outcome.is_ok());
    if good && !verbose {
        return (true, "ok".to_owned());
    }
    let mut text = String::new();
    for (name, outcome) in checks {
        let written = match outcome {
            Ok(()) => writeln!(text, "[+]{name} ok"),
            Err(reason) => writeln!(text, "[-]{name} failed: {}", reason.replace(['\r', '\n'], " ")),
        };
        debug_assert!(written.is_ok(), "writing to a String cannot fail");
    }
    text.push_str(path);
    text.push_str(if good { " check passed\n" } else { " check failed\n" });
    (good, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_gateway_is_not_ready_until_it_says_so() {
        let health = Health::new();
        assert!(!health.is_ready() && !health.has_started());
        health.set(Health::START, Ok(()));
        assert!(health.is_ready() && health.has_started());
    }

    #[test]
    fn a_bad_check_makes_it_not_ready_but_leaves_it_started() {
        let health = Health::new();
        health.set(Health::START, Ok(()));
        health.set("sink/cloud", Err("connection refused".into()));
        assert!(!health.is_ready() && health.has_started());
        health.remove("sink/cloud");
        assert!(health.is_ready());
    }

    #[test]
    fn the_report_is_short_when_well_and_names_what_fails() {
        let well = [("disk", Ok(())), ("start", Ok(()))];
        assert_eq!(report("livez", &well, false), (true, "ok".into()));
        assert_eq!(report("livez", &well, true).1, "[+]disk ok\n[+]start ok\nlivez check passed\n");
        let ill = [("disk", Err("full\nreally".to_owned())), ("start", Ok(()))];
        let text = "[-]disk failed: full really\n[+]start ok\nreadyz check failed\n";
        assert_eq!(report("readyz", &ill, false), (false, text.into()));
    }
}
