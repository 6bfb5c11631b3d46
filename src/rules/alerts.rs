//! The state of every alert, its number, and the delays that run.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use tracing::warn;

use super::state::{Delays, Input, State};
use super::{STATES_MAX, Transition};
use crate::config::AlertRule;
use crate::model::{AlertState, Millis, ObjectKey, Value};

/// The alerts that are not normal or once were told, by device and rule; at most [`STATES_MAX`].
#[derive(Debug)]
pub(super) struct Alerts {
    devices: HashMap<ObjectKey, DeviceAlerts>,
    /// Exactly the deadlines of the tracked states.
    timers: BTreeSet<(Millis, u32, ObjectKey)>,
    count: usize,
    pub(super) count_max: usize,
    refused: u64,
    /// Highest number of an alert that was forgotten: one that is new may be the same and numbers on from here.
    forgotten: u64,
}

impl Alerts {
    pub(super) fn new() -> Self {
        Self {
            devices: HashMap::new(),
            timers: BTreeSet::new(),
            count: 0,
            count_max: STATES_MAX,
            refused: 0,
            forgotten: 0,
        }
    }

    /// The state of an alert.
    pub(super) fn state(&self, rule: u32, device: &ObjectKey) -> State {
        self.devices.get(device).and_then(|alerts| alerts.get(rule)).map_or(State::Normal, |tracked| tracked.state)
    }

    /// Alerts that are tracked.
    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// Steps that were refused because [`STATES_MAX`] alerts are tracked.
    pub(super) fn refused(&self) -> u64 {
        self.refused
    }

    /// When the first delay is over.
    pub(super) fn next_deadline(&self) -> Option<Millis> {
        self.timers.first().map(|(deadline, ..)| *deadline)
    }

    /// Takes the first delay that is over; [`Input::Time`] has to follow for its rule and device.
    pub(super) fn pop_due(&mut self, now: Millis) -> Option<(u32, ObjectKey)> {
        if self.next_deadline()? > now {
            return None;
        }
        self.timers.pop_first().map(|(_, rule, device)| (rule, device))
    }

    /// Moves one alert on and pushes what has to be told.
    pub(super) fn step(&mut self, rule: RuleRef<'_>, device: &ObjectKey, event: Event, out: &mut Vec<Transition>) {
        let before = self.state(rule.index, device);
        let (after, told) = before.step(event.input, event.now, rule.delays);
        if after == before && matches!(after, State::Normal | State::Firing) {
            return;
        }
        let forgotten = self.forgotten;
        let Some(tracked) = self.tracked(rule.index, device) else { return };
        tracked.state = after;
        let held = tracked.value.take().filter(|_| event.input != Input::Gone);
        let value = event.value.or(held);
        if let Some(state) = told {
            let number = tracked.next_number(forgotten);
            out.push(Transition { rule: rule.spec.clone(), device: device.clone(), state, number, value });
        } else if after.deadline(rule.delays).is_some() {
            tracked.value = value;
        }
        if after == State::Normal && tracked.number == 0 {
            self.drop_tracked(rule.index, device);
        }
        self.move_timer(rule, device, before, after);
    }

    /// Takes over an alert that was told before a restart; false if there is no room.
    pub(super) fn restore(&mut self, rule: RuleRef<'_>, device: &ObjectKey, told: AlertState, number: u64) -> bool {
        let before = self.state(rule.index, device);
        let Some(tracked) = self.tracked(rule.index, device) else { return false };
        let (state, parity) = match told {
            AlertState::Firing => (State::Firing, 1),
            AlertState::Resolved => (State::Normal, 0),
        };
        // A whole store holds no number of the wrong half; the next one up keeps ids unique all the same.
        let number = if number % 2 == parity { number } else { number.saturating_add(1) };
        *tracked = Tracked { state, number, value: None };
        if number == 0 {
            self.drop_tracked(rule.index, device);
        }
        self.move_timer(rule, device, before, state);
        true
    }

    /// The device is gone: what was told is resolved, what ran is stopped. The numbers stay for its return.
    pub(super) fn remove_device<'r>(
        &mut self,
        device: &ObjectKey,
        rule: impl Fn(u32) -> Option<RuleRef<'r>>,
        out: &mut Vec<Transition>,
    ) {
        let indices: Vec<u32> = self.devices.get(device).map(DeviceAlerts::rules).unwrap_or_default();
        for index in indices {
            if let Some(rule) = rule(index) {
                self.step(rule, device, Event { input: Input::Gone, value: None, now: Millis(0) }, out);
            }
        }
        if self.count > self.count_max / 2 {
            self.forget_device(device);
        }
    }

    /// Half of the room is kept for devices that live: beyond it the numbers of those that are gone become one.
    fn forget_device(&mut self, device: &ObjectKey) {
        let alerts = self.devices.remove(device).unwrap_or_default();
        self.count -= alerts.0.len();
        self.forgotten = alerts.0.iter().map(|(_, tracked)| tracked.number).fold(self.forgotten, u64::max);
    }

    /// An alert to write to; none if it is new and there is no room for it.
    fn tracked(&mut self, rule: u32, device: &ObjectKey) -> Option<&mut Tracked> {
        let is_known = self.devices.get(device).is_some_and(|alerts| alerts.get(rule).is_some());
        if !is_known {
            if self.count >= self.count_max {
                if self.refused == 0 {
                    warn!(states_max = self.count_max, "too many alert states, new ones are refused");
                }
                self.refused += 1;
                return None;
            }
            self.count += 1;
        }
        self.devices.entry(device.clone()).or_default().get_or_add(rule)
    }

    fn drop_tracked(&mut self, rule: u32, device: &ObjectKey) {
        let Some(alerts) = self.devices.get_mut(device) else { return };
        self.count -= usize::from(alerts.remove(rule));
        if alerts.0.is_empty() {
            self.devices.remove(device);
        }
    }

    fn move_timer(&mut self, rule: RuleRef<'_>, device: &ObjectKey, before: State, after: State) {
        let (old, new) = (before.deadline(rule.delays), after.deadline(rule.delays));
        if old == new {
            return;
        }
        if let Some(deadline) = old {
            self.timers.remove(&(deadline, rule.index, device.clone()));
        }
        if let Some(deadline) = new {
            self.timers.insert((deadline, rule.index, device.clone()));
        }
    }
}

/// A rule as far as its alerts need it.
#[derive(Debug, Clone, Copy)]
pub(super) struct RuleRef<'r> {
    pub(super) index: u32,
    pub(super) spec: &'r Arc<AlertRule>,
    pub(super) delays: Delays,
}

/// What happens to an alert, and when.
#[derive(Debug, Clone)]
pub(super) struct Event {
    pub(super) input: Input,
    /// The deciding value, where it is known now.
    pub(super) value: Option<Value>,
    pub(super) now: Millis,
}

/// The alerts of one device by rule, sorted: most devices have one or two, for which a tree is ten times as large.
#[derive(Debug, Default)]
struct DeviceAlerts(Vec<(u32, Tracked)>);

impl DeviceAlerts {
    fn place(&self, rule: u32) -> Result<usize, usize> {
        self.0.binary_search_by_key(&rule, |(rule, _)| *rule)
    }

    fn get(&self, rule: u32) -> Option<&Tracked> {
        self.0.get(self.place(rule).ok()?).map(|(_, tracked)| tracked)
    }

    fn get_or_add(&mut self, rule: u32) -> Option<&mut Tracked> {
        let place = self.place(rule).unwrap_or_else(|place| {
            self.0.reserve_exact(1);
            self.0.insert(place, (rule, Tracked::default()));
            place
        });
        self.0.get_mut(place).map(|(_, tracked)| tracked)
    }

    /// False if it was not there.
    fn remove(&mut self, rule: u32) -> bool {
        self.place(rule).map(|place| self.0.remove(place)).is_ok()
    }

    fn rules(&self) -> Vec<u32> {
        self.0.iter().map(|(rule, _)| *rule).collect()
    }
}

/// One alert on one device.
#[derive(Debug, Default)]
struct Tracked {
    state: State,
    /// Of its last transition; 0 before the first.
    number: u64,
    /// The last known deciding value, while a delay runs.
    value: Option<Value>,
}

impl Tracked {
    /// Odd for firing, even for resolved, above every number that this alert may have had.
    fn next_number(&mut self, forgotten: u64) -> u64 {
        let last = if self.number == 0 { forgotten.saturating_add(forgotten % 2) } else { self.number };
        self.number = last.saturating_add(1);
        self.number
    }
}
